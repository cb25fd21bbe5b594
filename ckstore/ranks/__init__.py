"""Save one checkpoint from several processes: each process stages its part, and one process merges and publishes them.

Unless a docstring says otherwise, functions raise a `RankError` if the ranks disagree or some are missing, and
`OSError` if the system refuses a call.
"""
