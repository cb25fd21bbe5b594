"""Encoded forms of bytes, as pure functions on buffers: no I/O, no state. Source: docs/format/encoded-1.md.

The modules import NumPy and zstandard only when they are needed, since a store without encoded pieces works without
them. Damaged or hostile input raises `DamagedBlob`, and takes no more memory and time than valid data of that size.
"""
