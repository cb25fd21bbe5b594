"""Pure values and rules of the store; no input or output. Source of truth: docs/format/v1.md.

Unless a docstring says otherwise, checks raise `BadInput`, and `NewerFormat` for what a newer ckstore wrote.
"""
