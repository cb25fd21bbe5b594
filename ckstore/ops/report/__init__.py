"""Say what a store holds, uses and can do."""
