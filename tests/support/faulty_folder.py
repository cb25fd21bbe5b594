"""A folder shown through FUSE that fails as servers of shared filesystems do, when a file in another folder says so.

While a file of that name lies in the folder of the switches, in it perhaps for how many calls more:

- ``fsync``, ``close``: bytes are taken, and that a quota is over is said only at an fsync, or at a close;
- ``stale``: opening, linking and listing say ESTALE, as of what another host removed (Linux asks once more by itself);
- ``fail.json``: one call of those that it names fails, or several in a row (`Failing`);
- ``kill``: who makes the call number N that changes something is killed, and the call is not made;
- ``crash``: at that call the server dies, and what was written and not synced is lost: such a file is empty then.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.support.shared_folder import Folder

_CHANGES = ("rename_with", "link", "symlink", "mkdir", "rmdir", "unlink", "create", "write", "truncate", "chmod")
_SYNCS = ("fsync", "fsyncdir")
CALLS = {
    "changing": (*_CHANGES, *_SYNCS, "utimens", "chown"),
    "opening": ("open", "readdir"),
    "reading": ("read",),
    "writing": ("write",),
    "closing": ("flush",),
    "locking": ("flock",),
    "looking": ("getattr", "readlink", "statfs"),
}
"""Calls that can be made to fail, by what they do."""
_EVERY = {name for names in CALLS.values() for name in names}
_FAIL = "fail.json"


@dataclass(frozen=True)
class Failing:
    """What the switch ``fail.json`` holds.

    Attributes:
        calls: Names of those that are counted.
        left: The one of this number is the first that fails.
        code: With which error.
        how: It fails ``before`` it is done, or ``after``, as when the answer of a server is lost; or it writes less.
        times: How many in a row fail.
    """

    calls: tuple[str, ...]
    left: int
    code: int = 0
    how: Literal["before", "after", "short"] = "before"
    times: int = 1

    def put(self, switches: Path) -> None:
        """Let it fail from now on."""
        text = json.dumps(asdict(self))
        (switches / "new").write_text(text)
        (switches / "new").rename(switches / _FAIL)

    @staticmethod
    def take(switches: Path) -> int:
        """Let nothing fail any more; return what is left of the calls: less than 1 if one failed."""
        left = json.loads((switches / _FAIL).read_text())["left"]
        (switches / _FAIL).unlink()
        return int(left)


class FaultyFolder(Folder):
    """One with switches, which are asked for at each call."""

    def __init__(self, root: Any, lacks: str, switches: str) -> None:
        super().__init__(root, lacks)
        self._switches = switches
        self._unsynced: dict[int, int] = {}
        """Inode number -> a descriptor of a file that was written and not synced."""
        self._caller = 0

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in _CHANGES or name in _SYNCS:
            value = self._counted(value)
        return self._failing(name, value) if name in _EVERY else value

    def _counted(self, act: Any) -> Any:
        def call(*given: Any) -> Any:
            # 0 where the library itself asks, as for a hidden name when its file is closed: of the process before it.
            self._caller = _caller() or self._caller
            if self._is_last("crash"):
                for fd in self._unsynced.values():
                    os.ftruncate(fd, 0)
                os._exit(1)
            if self._is_last("kill"):
                if not self._caller:  # a signal to process 0 ends the tests
                    raise OSError(errno.EIO, "no process is known that could be killed")
                os.kill(self._caller, signal.SIGKILL)
                raise OSError(errno.EINTR, os.strerror(errno.EINTR))
            return act(*given)

        return call

    def _failing(self, name: str, act: Any) -> Any:
        def call(*given: Any) -> Any:
            fault = self._fault(name)
            if fault is None:
                return act(*given)
            if fault.how == "short":
                path, data, *place = given
                return act(path, data[: (len(data) + 1) // 2], *place)
            if fault.how == "after":
                act(*given)
            raise OSError(fault.code, os.strerror(fault.code))

        return call

    def _fault(self, name: str) -> Failing | None:
        """Count a call; return how it fails, if it does."""
        try:
            with open(f"{self._switches}/{_FAIL}", "r+", encoding="ascii") as file:
                told = json.load(file)
                if name not in told["calls"]:
                    return None
                left = told["left"]
                file.seek(0)
                json.dump({**told, "left": left - 1}, file)
                file.truncate()
        except FileNotFoundError:
            return None
        return Failing(**told) if 1 - told["times"] < left <= 1 else None

    def _left(self, switch: str) -> int | None:
        """Return what is in a switch, and take one from it; None: it is not there."""
        path = f"{self._switches}/{switch}"
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            text = os.read(fd, 20)
            left = int(text) if text else -1
            if left > 0:
                os.pwrite(fd, b"%-20d" % (left - 1), 0)
            return left
        finally:
            os.close(fd)

    def _is_last(self, switch: str) -> bool:
        return self._left(switch) == 1

    def _may_fail(self, switch: str, code: int) -> None:
        if self._left(switch):
            raise OSError(code, os.strerror(code))

    def readdir(self, path: str, fh: int) -> Any:
        """As the folder, or stale."""
        self._may_fail("stale", errno.ESTALE)
        return super().readdir(path, fh)

    def link(self, target: str, source: str) -> None:
        """As the folder, or stale."""
        self._may_fail("stale", errno.ESTALE)
        super().link(target, source)

    def open(self, path: str, flags: int) -> int:
        """As the folder, or stale."""
        self._may_fail("stale", errno.ESTALE)
        return super().open(path, flags)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """As the folder; a server keeps it in memory until it is synced."""
        number = os.fstat(fh).st_ino
        if number not in self._unsynced:
            # Not a copy of `fh`, which would keep its lock when who holds that dies before it has synced.
            self._unsynced[number] = os.open(f"/proc/self/fd/{fh}", os.O_RDWR)
        return super().write(path, data, offset, fh)

    def fsync(self, path: str, datasync: int, fh: int) -> None:
        """As the folder, or over its quota."""
        self._may_fail("fsync", errno.EDQUOT)
        super().fsync(path, datasync, fh)
        kept = self._unsynced.pop(os.fstat(fh).st_ino, None)
        if kept is not None:
            os.close(kept)

    def flush(self, path: str, fh: int) -> None:
        """Answer a close, perhaps by saying that the quota is over."""
        if os.fstat(fh).st_ino in self._unsynced:
            self._may_fail("close", errno.EDQUOT)


def _caller() -> int:
    _, _, pid = importlib.import_module("mfusepy").fuse_get_context()
    return int(pid)
