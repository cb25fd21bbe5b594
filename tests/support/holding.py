"""Processes that hold a file in every way that the kernel knows. As a script: ``python holding.py HOW PATH``.

It says ``ready`` when it holds the file, and lets go when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_READY_TIMEOUT_S = 30.0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
# The numbers of the generic table; x86-64 and arm64 have the same.
_IO_URING_SETUP, _IO_URING_REGISTER, _REGISTER_FILES = 425, 427, 2

_kept: list[object] = []


def read(path: str) -> None:
    _kept.append(os.open(path, os.O_RDONLY))


def opath(path: str) -> None:
    _kept.append(os.open(path, os.O_PATH))


def _mapped(path: str, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    address = _libc.mmap(None, os.fstat(fd).st_size, mmap.PROT_READ, flags, fd, 0)
    os.close(fd)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap")


def mapped_shared(path: str) -> None:
    _mapped(path, mmap.MAP_SHARED)


def mapped_private(path: str) -> None:
    _mapped(path, mmap.MAP_PRIVATE)


def in_flight(path: str) -> None:
    here, there = socket.socketpair()
    fd = os.open(path, os.O_RDONLY)
    socket.send_fds(here, [b"x"], [fd])
    os.close(fd)
    _kept.append((here, there))


def io_uring(path: str) -> None:
    parameters = (ctypes.c_char * 256)()
    ring = _libc.syscall(_IO_URING_SETUP, 4, parameters)
    if ring < 0:
        print("cannot: no io_uring here", flush=True)
        return
    fd = os.open(path, os.O_RDONLY)
    if _libc.syscall(_IO_URING_REGISTER, ring, _REGISTER_FILES, (ctypes.c_int * 1)(fd), 1) != 0:
        raise OSError(ctypes.get_errno(), "io_uring_register")
    os.close(fd)
    _kept.append(ring)


def other_name(path: str) -> None:
    """Open the file through a further hardlink, which then goes."""
    alias = Path(path).parents[3] / f"alias-{os.getpid()}"
    os.link(path, alias)
    _kept.append(os.open(alias, os.O_RDONLY))
    alias.unlink()


@contextlib.contextmanager
def holding(how: str, path: Path, *, inside: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold `path`; it has let go after the block.

    Args:
        how: Name of a function above.
        path: A blob in a store.
        inside: A command to run the process in, such as ``unshare``.
    """
    command = [*inside, sys.executable, "-S", str(Path(__file__).resolve()), how, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline().strip() if process.stdout else ""
        if line.startswith("cannot"):
            import pytest

            pytest.skip(line)
        assert line == "ready", line
        yield process
    finally:
        process.communicate(timeout=_READY_TIMEOUT_S)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    print("ready", flush=True)
    sys.stdin.read()
