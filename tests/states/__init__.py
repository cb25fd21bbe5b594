"""A table of real states: each is saved, loaded, loaded in place and goes on, or is refused with advice that works."""
