"""The index in SQLite. Losing it loses nothing: it is made from the directories (promise P5)."""
