"""The tests of ckstore."""
