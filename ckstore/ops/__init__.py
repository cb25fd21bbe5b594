"""The operations of the store, one per module.

Errors of `ckstore.errors` and `OSError` are passed on; `ops/api_calls.py` converts system errors to typed ones. A
docstring names an error if it adds facts to the class, such as the state after it, or the next action of the caller.
"""
