"""Values and rules of the store, without input or output. Source of truth: docs/format/v1.md.

Unless a docstring says otherwise, checks raise `BadInput`, or `NewerFormat` for data that a newer ckstore wrote.
"""
