"""Checkpoints that several processes make together: each stages its part, one joins and publishes them.

Unless a docstring says otherwise, functions raise a `RankError` where the ranks disagree or some are missing, and
`OSError` when the system refuses.
"""
