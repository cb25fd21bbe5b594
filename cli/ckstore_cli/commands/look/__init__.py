"""Commands that inspect a store and change nothing."""
