"""Makes every call that the fault library stands in front of, by its name in libc.

``python -m tests.faults.calls FOLDER``, with the library preloaded, prints for each call, as JSON,
what was counted and what it left behind: unharmed, failing, killed before it and killed after it.
`test_shim.py` says what that has to be.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.shim import Family, Fault, Mode, Preloaded

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_I64, _SIZE = ctypes.c_int64, ctypes.c_size_t
_TIMES = (_I64 * 4)(5, 0, 5, 0)
_AB, _CD = ctypes.create_string_buffer(b"ab"), ctypes.create_string_buffer(b"cd")
_ROOM = ctypes.create_string_buffer(64)
# Arrays of struct iovec: an address and a size each.
_PARTS = (_SIZE * 4)(ctypes.addressof(_AB), 2, ctypes.addressof(_CD), 2)
_ROOM_PARTS = (_SIZE * 2)(ctypes.addressof(_ROOM), 64)
_ZEROS = ctypes.create_string_buffer(64)
_STATUS = ctypes.create_string_buffer(512)

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One call of libc.

    Attributes:
        arguments: Gets a descriptor of a file of 4 bytes, at its end if the call writes, and one
            of the directory that holds it, which is also the working directory.
    """

    name: str
    family: Family
    arguments: Callable[[int, int], Arguments]

    def make(self, fd: int, directory: int) -> int:
        """Make it; return what libc returns."""
        function = _LIBC[self.name]
        if self.name == "opendir":
            function.restype = ctypes.c_void_p
            return 0 if function(*self.arguments(fd, directory)) else -1
        sized = self.family in (Family.WRITE, Family.READ)
        function.restype = ctypes.c_ssize_t if sized else ctypes.c_int
        return int(function(*self.arguments(fd, directory)))


def _bytes_elsewhere() -> int:
    source = os.memfd_create("source")
    os.write(source, b"zzzz")
    return source


def _at(offset: int) -> Any:
    return ctypes.byref(_I64(offset))


_OLD, _NEW, _FOLDER = b"file", b"new", b"folder"
_MAKE, _EMPTY = os.O_CREAT | os.O_WRONLY, os.O_TRUNC | os.O_WRONLY
_NODE = stat.S_IFREG | 0o600, ctypes.c_uint64(0)
_ME = os.getuid(), os.getgid()

_TABLE: list[tuple[str, Family, Callable[[int, int], Arguments]]] = [
    ("open open64", Family.CREATE, lambda f, d: (_NEW, _MAKE, 0o600)),
    ("openat openat64", Family.CREATE, lambda f, d: (d, _NEW, _MAKE, 0o600)),
    ("__open_2 __open64_2", Family.CREATE, lambda f, d: (_OLD, _EMPTY)),
    ("__openat_2 __openat64_2", Family.CREATE, lambda f, d: (d, _OLD, _EMPTY)),
    ("creat creat64", Family.CREATE, lambda f, d: (_NEW, 0o600)),
    ("mkdir", Family.CREATE, lambda f, d: (_NEW, 0o700)),
    ("mkdirat", Family.CREATE, lambda f, d: (d, _NEW, 0o700)),
    ("symlink", Family.CREATE, lambda f, d: (b"text", _NEW)),
    ("symlinkat", Family.CREATE, lambda f, d: (b"text", d, _NEW)),
    ("mknod", Family.CREATE, lambda f, d: (_NEW, *_NODE)),
    ("mknodat", Family.CREATE, lambda f, d: (d, _NEW, *_NODE)),
    ("write", Family.WRITE, lambda f, d: (f, b"xy", _SIZE(2))),
    ("pwrite pwrite64", Family.WRITE, lambda f, d: (f, b"xy", _SIZE(2), _I64(9))),
    ("writev", Family.WRITE, lambda f, d: (f, _PARTS, 2)),
    ("pwritev pwritev64", Family.WRITE, lambda f, d: (f, _PARTS, 2, _I64(9))),
    ("pwritev2 pwritev64v2", Family.WRITE, lambda f, d: (f, _PARTS, 2, _I64(9), 0)),
    ("copy_file_range", Family.WRITE, lambda f, d: (f, _at(0), f, _at(4), _SIZE(4), 0)),
    ("sendfile sendfile64", Family.WRITE, lambda f, d: (f, _bytes_elsewhere(), _at(0), _SIZE(4))),
    ("fsync fdatasync", Family.SYNC, lambda f, d: (f,)),
    ("sync_file_range", Family.SYNC, lambda f, d: (f, _I64(0), _I64(0), 2)),
    ("syncfs", Family.SYNC, lambda f, d: (d,)),
    ("rename", Family.NAME, lambda f, d: (_OLD, _NEW)),
    ("renameat", Family.NAME, lambda f, d: (d, _OLD, d, _NEW)),
    ("renameat2", Family.NAME, lambda f, d: (_AT_FDCWD, _OLD, _AT_FDCWD, _FOLDER, 2)),
    ("unlink", Family.NAME, lambda f, d: (_OLD,)),
    ("unlinkat", Family.NAME, lambda f, d: (d, _OLD, 0)),
    ("rmdir", Family.NAME, lambda f, d: (_FOLDER,)),
    ("link", Family.LINK, lambda f, d: (_OLD, _NEW)),
    ("linkat", Family.LINK, lambda f, d: (d, _OLD, _AT_FDCWD, _NEW, 0)),
    ("ftruncate ftruncate64", Family.META, lambda f, d: (f, _I64(2))),
    ("truncate truncate64", Family.META, lambda f, d: (_OLD, _I64(2))),
    ("fallocate fallocate64", Family.META, lambda f, d: (f, 0, _I64(0), _I64(99))),
    ("posix_fallocate posix_fallocate64", Family.META, lambda f, d: (f, _I64(0), _I64(99))),
    ("chmod", Family.META, lambda f, d: (_OLD, 0o444)),
    ("fchmod", Family.META, lambda f, d: (f, 0o444)),
    ("fchmodat", Family.META, lambda f, d: (d, _OLD, 0o444, 0)),
    # To the present owner, which any process may do; so these change nothing that can be seen.
    ("chown lchown", Family.META, lambda f, d: (_OLD, *_ME)),
    ("fchown", Family.META, lambda f, d: (f, *_ME)),
    ("fchownat", Family.META, lambda f, d: (d, _OLD, *_ME, 0)),
    ("utimensat", Family.META, lambda f, d: (d, _OLD, _TIMES, 0)),
    ("futimens", Family.META, lambda f, d: (f, _TIMES)),
    ("open open64 __open_2 __open64_2", Family.OPEN, lambda f, d: (_OLD, os.O_RDONLY)),
    ("openat openat64", Family.OPEN, lambda f, d: (d, _OLD, os.O_RDONLY)),
    ("__openat_2 __openat64_2", Family.OPEN, lambda f, d: (d, _OLD, os.O_RDONLY)),
    ("flock", Family.LOCK, lambda f, d: (d, fcntl.LOCK_SH)),
    # A zeroed struct flock asks for a shared lock on all of the file.
    ("fcntl fcntl64", Family.LOCK, lambda f, d: (f, fcntl.F_SETLK, _ZEROS)),
    ("close", Family.CLOSE, lambda f, d: (os.dup(f),)),
    ("read", Family.READ, lambda f, d: (f, _ROOM, _SIZE(4))),
    ("pread pread64", Family.READ, lambda f, d: (f, _ROOM, _SIZE(4), _I64(0))),
    ("readv", Family.READ, lambda f, d: (f, _ROOM_PARTS, 1)),
    ("preadv preadv64", Family.READ, lambda f, d: (f, _ROOM_PARTS, 1, _I64(0))),
    ("stat stat64 lstat lstat64", Family.LOOK, lambda f, d: (_OLD, _STATUS)),
    ("fstatat fstatat64", Family.LOOK, lambda f, d: (d, _OLD, _STATUS, 0)),
    ("statx", Family.LOOK, lambda f, d: (d, _OLD, 0, 0x7FF, _STATUS)),
    ("access", Family.LOOK, lambda f, d: (_OLD, 0)),
    ("faccessat", Family.LOOK, lambda f, d: (d, _OLD, 0, 0)),
    ("readlink", Family.LOOK, lambda f, d: (b"symlink", _ROOM, _SIZE(64))),
    ("readlinkat", Family.LOOK, lambda f, d: (d, b"symlink", _ROOM, _SIZE(64))),
    ("opendir", Family.LOOK, lambda f, d: (_FOLDER,)),
    ("preadv2 preadv64v2", Family.READ, lambda f, d: (f, _ROOM_PARTS, 1, _I64(0), 0)),
]
CALLS = [Call(name, family, arguments) for names, family, arguments in _TABLE for name in names.split()]


def _look(folder: Path) -> str:
    """Everything that a call could have changed."""
    seen = []
    for path in sorted(folder.iterdir()):
        status = path.lstat()
        content = path.read_bytes().hex() if stat.S_ISREG(status.st_mode) else ""
        seen.append(
            (
                path.name,
                oct(status.st_mode),
                status.st_size,
                status.st_nlink,
                status.st_mtime_ns == 5 * 10**9,
                content,
            )
        )
    return json.dumps(seen)


class Maker:
    """Makes one call after another, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shim = Preloaded()
        self._serial = 0

    def outcome(self, call: Call, mode: Mode) -> dict[str, object]:
        """Make the call in a fork; say what was counted, given and changed, and if it lived."""
        self._serial += 1
        place = self._folder / str(self._serial)
        (place / "folder").mkdir(parents=True)
        (place / _OLD.decode()).write_bytes(b"1234")
        (place / "symlink").symlink_to("file")
        before = _look(place)
        answer = self._folder / "answer"
        answer.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            try:
                answer.write_text(json.dumps(self._make(call, mode, place)))
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        said = json.loads(answer.read_text()) if answer.exists() else {}
        return {**said, "killed": os.WIFSIGNALED(status), "changed": _look(place) != before}

    def _make(self, call: Call, mode: Mode, place: Path) -> dict[str, object]:
        os.chdir(place)
        fd, directory = os.open(_OLD, os.O_RDWR), os.open(".", os.O_RDONLY)
        os.lseek(fd, 4 if call.family is Family.WRITE else 0, os.SEEK_SET)
        self._shim.arm(Fault(mode, 1, errno.EDQUOT, families=call.family), place, self._folder / "log")
        ctypes.set_errno(0)
        given = call.make(fd, directory)
        code = given if call.name.startswith("posix_") else ctypes.get_errno()
        self._shim.disarm()
        return {"given": given, "errno": code, "count": self._shim.count, "hits": self._shim.hits}


def main() -> None:
    """Print the outcome of every call in every mode."""
    maker = Maker(Path(sys.argv[1]))
    modes: tuple[Mode, ...] = ("count", "error", "kill-before", "kill-after")
    out = [{"name": c.name, "family": c.family.name, **{m: maker.outcome(c, m) for m in modes}} for c in CALLS]
    print(json.dumps(out))


if __name__ == "__main__":
    main()
