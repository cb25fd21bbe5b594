"""The settings of a store, its retention and its limits."""
