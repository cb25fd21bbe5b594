"""Values that are kept by names: objects as class and fields, enumerations, classes and functions themselves."""
