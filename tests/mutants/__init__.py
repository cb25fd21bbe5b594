"""The code without one of its guards, again and again: each time something has to notice."""
