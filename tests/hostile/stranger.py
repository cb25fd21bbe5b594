"""The user who opens a store from elsewhere: a process of another user, with bounds on its time and its memory."""

from __future__ import annotations

import codecs
import ctypes
import gc
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from ckstore.errors import CkstoreError
from tests.hostile.acts import Act, ExitStatus, acts, as_json
from tests.hostile.scene import STRANGER, Scene, bytes_there

CPU_S = 10.0
"""What an act may take of a processor."""
_WALL_S = 600.0
"""What it may take with waiting on a busy machine: only what hangs takes longer."""
_ALL_S = 3600.0
"""What all acts together may take, some 200: the same."""
MORE_MEMORY_BYTES = 256 * 2**20
"""What the process may take beyond what it has and the bytes of the store."""
_M_ARENA_MAX = -8


class Visit(NamedTuple):
    """What a user found.

    Attributes:
        acts: How many things the stranger did.
        refused: How many were refused, by an error of ckstore.
        wrong: What must not be, one text each.
    """

    acts: int
    refused: int
    wrong: list[str]


Give = Callable[[Scene], Iterator[Act]]
"""Gives what the user does."""


class _TooLong(BaseException):
    """An act takes longer than it may."""


def import_everything() -> None:
    """Import all that the acts need, before the process becomes one that may not read it any more."""
    import ckstore
    import ckstore_cli

    for package in (ckstore, ckstore_cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            # The kernel is imported where Triton is, and that is with a GPU. torchtitan is no development package.
            if not module.name.endswith(("__main__", "device.kernel", "integrations.torchtitan")):
                import_module(module.name)
    for encoding in ("unicode_escape", "latin-1", "idna", "raw_unicode_escape"):
        codecs.lookup(encoding)
    import torch

    torch.set_num_threads(1)


def visit(scene: Scene, give: Give = acts, more_bytes: int = 0) -> Visit:
    """Do everything with the store of `scene` in a fork; the store belongs to the user who does it.

    Args:
        scene: The store, and what lies around it.
        give: Gives what is done.
        more_bytes: Memory that is allowed beside the bytes of the store.
    """
    nbytes = bytes_there(scene) + more_bytes
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            os.write(writing, as_json(_inside(scene, nbytes, give)))
            os._exit(0)
        except BaseException:
            os.write(writing, as_json(Visit(0, 0, ["the process itself: " + traceback.format_exc()])))
        finally:
            os._exit(1)
    os.close(writing)
    told = b""
    with os.fdopen(os.pidfd_open(pid), "rb", buffering=0) as handle:
        if not select.select([handle], [], [], _ALL_S)[0]:
            os.kill(pid, signal.SIGKILL)
        while part := os.read(reading, 65536):
            told += part
        os.close(reading)
        _, status = os.waitpid(pid, 0)
    if not told:
        last = (scene.out / "last").read_text() if (scene.out / "last").exists() else "nothing"
        return Visit(0, 0, [f"the process ended by {os.waitstatus_to_exitcode(status)} while it did: {last}"])
    return Visit(*json.loads(told))


def _inside(scene: Scene, nbytes: int, give: Give) -> Visit:
    most = _become_stranger(scene, nbytes)
    warnings.simplefilter("ignore")
    done, refused, wrong = 0, 0, list[str]()
    gc.freeze()  # what is collected below is what the acts left
    last = os.open(scene.out / "last", os.O_WRONLY | os.O_CREAT, 0o600)
    for act in give(scene):
        done += 1
        os.ftruncate(last, 0)
        os.pwrite(last, act.name.encode(), 0)
        try:
            _within_bounds(act.do, most)
        except CkstoreError as error:
            refused += 1
            if not str(error):
                wrong.append(f"{act.name}: no words")
        except _TooLong as error:
            wrong.append(f"{act.name}: took longer than {error}: {_where(error)}")
        except ExitStatus as error:
            wrong.append(f"{act.name}: {error}")
        except BaseException as error:
            wrong.append(f"{act.name}: {type(error).__name__}: {str(error)[:300]}: {_where(error)}")
        gc.collect()
    return Visit(done, refused, [text[:2000] for text in wrong[:20]])


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))


def _within_bounds(do: Callable[[], object], most_bytes: int) -> None:
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    signal.setitimer(signal.ITIMER_REAL, _WALL_S)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, hard))
    try:
        do()
    finally:
        # What an act used is still there while its error is looked at, for which there must be room.
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(number: int, _frame: object) -> None:
    raise _TooLong(f"{CPU_S} s of a processor" if number == signal.SIGPROF else f"{_WALL_S} s")


def _become_stranger(scene: Scene, nbytes: int) -> int:
    """Become the user whose files these are, in their home; `nbytes` are those of the store.

    Returns:
        How many bytes of addresses an act may have.
    """
    os.environ |= {"HOME": str(scene.home), "TMPDIR": str(scene.out / "tmp")}
    os.chdir(scene.out)
    log = os.open(scene.out / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for fd in (1, 2):
        os.dup2(log, fd)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
    os.umask(0o022)
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)  # each thread would set aside 64 MiB of addresses
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _too_long)
    return pages * resource.getpagesize() + MORE_MEMORY_BYTES + nbytes
