"""The writer of DeepSpeed #8003, in the few lines of its logic that matter; its package needs a GPU's toolchain.

As in `deepspeed/io/fast_file_writer.py` before the fix: the aligned part goes out through a descriptor opened with
O_DIRECT, the tail through a second opening of the file, after which the first descriptor is opened again. `_fini`
forgets the descriptor instead of closing it, and `__del__` looks at what `_fini` has just set.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_ALIGNMENT = 4096
_INVALID = -1


class LeakingWriter:
    """Writes one file, and leaves its descriptor open when it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_DIRECT | os.O_CREAT | os.O_WRONLY)

    def write(self, data: bytes) -> None:
        """Write everything: the aligned part directly, the tail on a descriptor of its own."""
        aligned = len(data) // _ALIGNMENT * _ALIGNMENT
        with mmap.mmap(-1, max(aligned, _ALIGNMENT)) as buffer:  # O_DIRECT wants aligned memory
            buffer[:aligned] = data[:aligned]
            with memoryview(buffer)[:aligned] as view:
                written = 0
                while written < aligned:
                    written += os.write(self._fd, view[written:])
        os.close(self._fd)
        with self._path.open("ab") as tail:
            tail.write(data[aligned:])
        self._fd = os.open(self._path, os.O_DIRECT | os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Be done with the file."""
        self._fini()

    def _fini(self) -> None:
        self._fd = _INVALID  # here the descriptor is lost: neither fsynced nor closed

    def __del__(self) -> None:
        self._fini()
        if self._fd != _INVALID:  # never: it tests the attribute that was overwritten
            raise ResourceWarning(f"{self._path} was not closed")
