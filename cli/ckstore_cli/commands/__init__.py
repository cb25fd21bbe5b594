"""One module a command, of the same name; imported when the command runs."""
