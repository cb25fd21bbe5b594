"""Values that are stored by name: objects by their class and fields, members of enumerations, classes and functions."""
