"""Encoded forms of bytes, as pure functions on buffers: no I/O, no state. Source: docs/format/encoded-1.md.

NumPy and zstandard are imported only in this package, inside the functions, since a store without encoded pieces needs
neither. Damaged or hostile input raises `DamagedBlob`, with no more memory and time than valid data of that size needs.
"""
