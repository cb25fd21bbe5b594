"""The savers of a store, found through /proc: by the page of memory that each of them has open."""

from __future__ import annotations

import json
from pathlib import Path

from ckstore.model.saver.status import STATUS_BYTES, STATUS_NAME, SaverStatus
from ckstore.saver.client.process import MARK

_PROC = Path("/proc")
_TRIES = 3


def savers_of(store: str) -> tuple[SaverStatus, ...]:
    """Return the savers of the store at this path that this user may look at, by process."""
    found = [_status(folder) for folder in _PROC.iterdir() if folder.name.isdigit() and _is_saver(folder)]
    return tuple(sorted((one for one in found if one is not None and one.store == store), key=lambda one: one.pid))


def _is_saver(folder: Path) -> bool:
    try:
        return MARK.encode() in (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def _status(folder: Path) -> SaverStatus | None:
    try:
        pages = [fd for fd in (folder / "fd").iterdir() if f"/memfd:{STATUS_NAME} " in f"{fd.readlink()} "]
        for _ in range(_TRIES if pages else 0):
            text = pages[0].read_bytes()[:STATUS_BYTES]
            try:
                return SaverStatus(pid=int(folder.name), **json.loads(text))
            except ValueError:  # read in the middle of a change
                continue
    except OSError:  # it has ended, or is another user's
        pass
    return None
