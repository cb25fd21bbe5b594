"""Documents of a store that somebody else wrote: refused with one typed error, or read as what they are."""
