"""Documents of a store that another person wrote: refused with one typed error, or read as what they are."""
