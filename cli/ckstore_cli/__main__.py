"""Runs ``python -m ckstore_cli``, which is the same as ``ckstore``."""

from __future__ import annotations

from ckstore_cli.app import main

if __name__ == "__main__":
    main()
