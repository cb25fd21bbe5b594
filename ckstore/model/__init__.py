"""Pure values and rules of the store; no input or output. Source of truth: docs/format/v1.md."""
