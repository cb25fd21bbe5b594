"""Commands for the whole store, and the demo."""
