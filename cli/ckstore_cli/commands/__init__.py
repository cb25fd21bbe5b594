"""The commands, each in a module of the same name, which is imported when the command runs."""
