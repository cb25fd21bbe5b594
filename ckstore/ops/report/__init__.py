"""Report the content, space use and abilities of a store."""
