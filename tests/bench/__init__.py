"""The benchmark: ckstore beside its floors and its peers, in one run: ``make bench``, docs/performance.md."""
