"""What a store is told to do: its settings, retention, limits."""
