"""Encoded forms of bytes, as pure functions on buffers: no I/O, no state. Source: docs/format/encoded-1.md.

NumPy and zstandard are imported here alone, inside the functions: a store without encoded pieces needs neither.
Damaged or hostile input raises `DamagedBlob`, after as much memory and time as the real bytes are worth.
"""
