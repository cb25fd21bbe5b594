"""The verbs of the store, one a module.

Errors of `ckstore.errors` and `OSError` pass through; `ops/api_calls.py` makes errors of the system typed ones. A
docstring names an error where it says more than its class: what was done before, or what the caller does next.
"""
