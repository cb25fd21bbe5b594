"""Memory that restored leaves lie in. One storage is one memory; its leaves share it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StorageMemory:
    """The bytes of one storage, to be filled before leaves are made of it."""

    owner: object  # A flat uint8 tensor or array, or, for bytes and str, a buffer. Leaves keep it alive.
    view: memoryview  # all of its bytes, writable
