"""Encode and decode bytes in buffers, without I/O, as defined in docs/format/encoded-1.md.

NumPy and zstandard are imported only when they are needed, since a store without encoded pieces works without them.
Damaged or hostile input raises `DamagedBlob`, and takes no more memory and time than valid data of the same size.
"""
