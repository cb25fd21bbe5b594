"""The table of pairs of capabilities, the law that fills most of its cells, and the check that no cell is empty."""
