"""Values that are stored by name: objects as class and fields, enumerations, classes and functions themselves."""
