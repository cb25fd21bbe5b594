"""Commands that only look: what there is, how it differs, what it costs."""
