"""Kill a program and its saver in the middle of a save, and look at what they left.

It looks at the store from outside, by its documented layout (docs/format/v1.md) and not through the
library: a save in flight is a directory in `staging/`, a published one is in `checkpoints/`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckstore.saver.client.savers import savers_of

_LOOK_EVERY_S = 0.0005
_DIE_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A save in flight, or what is left of one.

    Attributes:
        name: Its directory in `staging/`.
        blobs: Files with data in it.
        blob_bytes: Their size.
        unfinished: How many of them have no other name: this save is writing them, while the others
            are links to what the store has.
        sealed: Whether everything was written and only the rename was to come.
    """

    name: str
    blobs: int
    blob_bytes: int
    unfinished: int
    sealed: bool


def saves_in_flight(store: Path) -> list[Leftover]:
    """Return every save in `staging/` that holds data."""
    found = []
    for save in sorted(_listed(store / "staging")):
        blobs = [status for blob in _listed(save / "blobs") if (status := _status(blob))]
        if blobs:
            found.append(
                Leftover(
                    name=save.name,
                    blobs=len(blobs),
                    blob_bytes=sum(blob.st_size for blob in blobs),
                    unfinished=sum(blob.st_nlink == 1 for blob in blobs),
                    sealed=(save / "manifest.json").exists(),
                )
            )
    return found


def published(store: Path, run: str) -> list[int]:
    """Return the steps of `run` that are published, in their order."""
    names = (path.name for path in _listed(store / "checkpoints" / run))
    return sorted(int(name) for name in names if name.isdigit())


def kill_in_a_save(
    program: subprocess.Popen[bytes], store: Path, run: str, *, after_saves: int, deadline_s: float
) -> bool:
    """Kill -9 `program`, and before it its saver, while a blob is written, once `run` has `after_saves` checkpoints.

    If only the program were killed, its saver would finish the save. `deadline_s` is a time of `time.monotonic`.
    Whether the kill came before that save was published has to be looked at afterwards: `saves_in_flight`.

    Returns:
        False if the program ended before it was killed.

    Raises:
        TimeoutError: The deadline passed; the program is still running.
    """
    savers: list[int] = []
    while program.poll() is None:
        # In this order: a save seen in flight is then later than those that were counted.
        if len(published(store, run)) >= after_saves and _writing(store):
            for pid in (*savers, program.pid):
                _kill(pid)
            killed = program.wait(_DIE_WITHIN_S) == -signal.SIGKILL
            _end_savers(store, time.monotonic() + _DIE_WITHIN_S)
            return killed
        if time.monotonic() > deadline_s:
            raise TimeoutError
        savers = savers or _savers(store)  # known before the save that is to be cut: to look takes a while
        time.sleep(_LOOK_EVERY_S)
    return False


def _savers(store: Path) -> list[int]:
    return [saver.pid for saver in savers_of(str(store.resolve()))]


def _end_savers(store: Path, deadline_s: float) -> None:
    """Wait until no saver is left, also none that took the place of another before the program died."""
    while left := _savers(store):
        for pid in left:
            _kill(pid)
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(_LOOK_EVERY_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.kill(pid, signal.SIGKILL)


def _writing(store: Path) -> bool:
    return any(save.unfinished for save in saves_in_flight(store))


def _listed(directory: Path) -> list[Path]:
    """Return what is in a directory; nothing if it is gone, as a save may be any moment."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _status(path: Path) -> os.stat_result | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status if status.st_size else None
