"""The benchmark: ckstore beside its baselines and its peers, in one run: ``make bench``, docs/performance.md."""
