"""The operations of the store, one per module.

All functions may raise errors of `ckstore.errors` and `OSError`. `ops/api_calls.py` converts system errors to typed
errors. A docstring lists an error only to add facts, such as the state after it or the next action of the caller.
"""
