"""Build `shim.c` with the system's C compiler, and steer it from inside a process that has it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.support.requirements import require, require_c_compiler

Mode = Literal["count", "kill-before", "kill-after", "error", "short", "signal", "hook"]

_SOURCE = Path(__file__).with_name("shim.c")
_COMPILE_TIMEOUT_S = 120.0


class Family(IntFlag):
    """Kinds of calls, as in shim.c."""

    WRITE = 1
    CREATE = 2
    SYNC = 4
    NAME = 8
    META = 16
    LINK = 32
    MUTATING = 63
    OPEN = 64
    LOCK = 128
    CLOSE = 256
    READ = 512
    LOOK = 1024


EVERY_CALL = Family(sum(Family))

ALLOCATING = Family.WRITE | Family.CREATE | Family.META | Family.LINK
"""What a full disk refuses; it still renames and unlinks."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to go wrong.

    Attributes:
        at: Number of the call that is hit, from 1.
        error: errno for the mode ``error``.
        sticky: Hit every call from `at` on.
        families: The calls that are counted.
    """

    mode: Mode
    at: int
    error: int = 0
    sticky: bool = False
    families: Family = Family.MUTATING


@cache
def built() -> Path:
    """Return the library; built once for every state of its source, and shared by all sessions.

    Skips the test where there is no C compiler, and fails it in continuous integration.
    """
    compiler = require_c_compiler()
    source = _SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"ckstore-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    require(folder.stat().st_uid == os.getuid(), f"{folder} belongs to another user")
    library = folder / f"shim-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            target = Path(fresh) / library.name
            command = [
                str(compiler),
                "-shared",
                "-fPIC",
                "-O2",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
            ]
            command += ["-o", str(target), str(_SOURCE), "-ldl", "-lpthread"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
            if done.returncode != 0:
                msg = f"{' '.join(command)} failed:\n{done.stderr}"
                raise RuntimeError(msg)
            target.rename(library)  # two sessions may build it at once; both are the same
    return library


def environment(fault: Fault, root: Path, log: Path | None = None) -> dict[str, str]:
    """Return the variables that preload the library into a whole process and arm it."""
    out = {
        "LD_PRELOAD": str(built()),
        "FAULT_MODE": fault.mode,
        "FAULT_AT": str(fault.at),
        "FAULT_ERRNO": str(fault.error),
        "FAULT_STICKY": str(int(fault.sticky)),
        "FAULT_FAMILIES": str(int(fault.families)),
        "FAULT_ROOT": str(root),
    }
    return out if log is None else {**out, "FAULT_LOG": str(log)}


class Preloaded:
    """The library in this very process, which must have been started with it preloaded."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)
        self._c.fault_arm.argtypes = [
            ctypes.c_char_p,
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_char_p,
            ctypes.c_char_p,
        ]
        self._hook: Any = None
        for name in ("fault_count", "fault_hits", "fault_second_syncs"):
            getattr(self._c, name).restype = ctypes.c_long

    def arm(self, fault: Fault, root: Path, log: Path) -> None:
        """Count from 0 the calls below `root`, and hit one; `log`, elsewhere, tells them all."""
        settings = (
            fault.mode.encode(),
            fault.at,
            fault.error,
            int(fault.sticky),
            int(fault.families),
        )
        if self._c.fault_arm(*settings, os.fsencode(root), os.fsencode(log)) != 0:
            msg = f"the fault library refuses {fault} for {root}"
            raise RuntimeError(msg)

    def log_raw(self, *, wanted: bool) -> None:
        """Have the log say also what the kernel is given: after tabs descriptor, flags and path, and the same again."""
        self._c.fault_log_raw(int(wanted))

    def hook(self, called: Callable[[str], None]) -> None:
        """Have `called` called, with the path, before each call that is hit in the mode ``hook``; it is not counted."""

        def decoded(path: bytes, _other: bytes | None) -> None:
            called(os.fsdecode(path))

        self._hook = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(decoded)
        self._c.fault_hook(self._hook)

    def disarm(self) -> None:
        """Let everything through again."""
        self._c.fault_disarm()

    def skip_syncs(self) -> None:
        """Make no fsync any more: what a killed process leaves behind does not depend on them."""
        self._c.fault_skip_syncs(1)

    def cut_power_instead(self, fd: int, *, flush_log: bool) -> None:
        """Where the process would be killed, shut down the filesystem of `fd` instead; the process goes on.

        Args:
            fd: Stays open as long as that may happen.
            flush_log: Whether what the journal of the filesystem has in memory is written out first.
        """
        self._c.fault_cut_power(fd, 1 if flush_log else 2)

    @property
    def count(self) -> int:
        """Calls counted since `arm`."""
        return int(self._c.fault_count())

    @property
    def hits(self) -> int:
        """Calls hit since `arm`."""
        return int(self._c.fault_hits())

    @property
    def second_syncs(self) -> int:
        """How often a file was fsynced again after its fsync had been made to fail."""
        return int(self._c.fault_second_syncs())
