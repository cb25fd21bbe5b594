"""The versions of Python, torch and other packages that ckstore is tested with: `make matrix`."""
