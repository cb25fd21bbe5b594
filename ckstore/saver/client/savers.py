"""Find the savers of a store through /proc, by the status page that each saver has open.

The page of another user's process may have any content, so a page is accepted only if it is a valid status.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ckstore.errors import CkstoreError
from ckstore.fs.memory_file import is_memory
from ckstore.model.names import is_run
from ckstore.model.saver.messages import SaverState
from ckstore.model.saver.status import STATUS_BYTES, STATUS_NAME, SaverStatus
from ckstore.saver.client.process import MARK

_PROC = Path("/proc")
# The maximum number of tries to read a page. Pages are written without a lock, so that the page of a frozen saver can
# be read. If a page is changed during a read, it is read again.
_TRIES = 3
# The maximum number of bytes that are read of a command line. The command line of a saver contains `sys.path` and may
# be long. The command line of another process may have any length.
_CMDLINE_BYTES = 256 * 1024


def savers_seen(store: str) -> tuple[SaverStatus, ...]:
    """Return the result of `savers_of`, or nothing if the processes of this host cannot be listed."""
    try:
        return savers_of(store)
    except CkstoreError:
        return ()


def savers_of(store: str) -> tuple[SaverStatus, ...]:
    """Return the savers of the store at this path, sorted by process id.

    A saver is omitted if this user may not read its status page.
    """
    try:
        processes = [folder for folder in _PROC.iterdir() if folder.name.isdigit()]
    except OSError as error:
        raise CkstoreError(f"the processes of this host cannot be listed: {error}", hint="is /proc mounted?") from error
    found = [_status(folder) for folder in processes]
    return tuple(sorted((one for one in found if one is not None and one.store == store), key=lambda one: one.pid))


def started_at(pid: int) -> int:
    """Return when a process began, in ticks since the host started, or 0 if it has ended."""
    try:
        # The fields are counted from the last parenthesis, because the name of a program may contain parentheses. Field
        # 22 of proc(5) is the 20th field after it.
        return int((_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


def status_at(pid: int) -> SaverStatus | None:
    """Return the status page of a child process, or None if the child has ended or has no page yet."""
    return _status(_PROC / str(pid))


def _status(folder: Path) -> SaverStatus | None:
    try:
        if MARK.encode() not in _start_of(folder / "cmdline", _CMDLINE_BYTES).split(b"\0"):
            return None
        pages = []
        for fd in (folder / "fd").iterdir():
            with suppress(FileNotFoundError):  # the saver has closed the file meanwhile
                if is_memory(f"{fd.readlink()}", STATUS_NAME):
                    pages.append(fd)
        for _ in range(_TRIES if pages else 0):
            status = _parsed(int(folder.name), _start_of(pages[0], STATUS_BYTES))
            if status is not None:  # otherwise, the page was read during a change
                return status
    except OSError:  # the process has ended, or belongs to another user
        pass
    return None


def _start_of(path: Path, most_bytes: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(most_bytes)


def _parsed(pid: int, text: bytes) -> SaverStatus | None:
    try:
        said: dict[str, Any] = json.loads(text)
        status = SaverStatus(pid=pid, **said)
    except (ValueError, TypeError, RecursionError):
        return None
    # The process of another user may write anything into its page. `ckstore savers` would fail if it printed a status
    # with a value of the wrong type.
    fits = all(isinstance(getattr(status, name), kind) for name, kind in get_type_hints(SaverStatus).items())
    known = status.state in get_args(SaverState) and (not status.run or is_run(status.run))
    return status if fits and known else None
