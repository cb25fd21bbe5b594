"""Trash: the only place where anything that others can see is unlinked (rules F, T and K of the design).

What is to go is renamed into ``trash/``; that is made durable; its digests are entered as candidates, so that gc
looks at what loses
its last user; then its names are unlinked. The last link of an inode is unlinked only if the kernel says that nobody
has it open.
"""

from __future__ import annotations

import contextlib
import os
import stat
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.fs import files, lease, links, locks
from ckstore.model.digest import is_digest
from ckstore.objects.layout import BLOBS, Layout

if TYPE_CHECKING:
    from pathlib import Path

EnterCandidates = Callable[[list[tuple[str, int]]], None]
"""Makes sure that gc will look at these blobs (digest, size); raises if it cannot."""


@dataclass(slots=True)
class Freed:
    """What was unlinked for good."""

    count: int = 0
    nbytes: int = 0


def move_to_trash(layout: Layout, path: Path, lock: locks.DirectoryLock | None = None) -> Path:
    """Rename the directory `path` into ``trash/``; return where it is now. It is durable after a sync of ``trash/``.

    Raises:
        FileNotFoundError: It is gone.
    """
    target = layout.trash / f"{path.name}.{uuid.uuid4().hex[:12]}"
    links.rename(path, target)
    if lock is not None and not lock.names(target):
        links.rename(target, path)  # somebody put another directory there meanwhile: it is not ours to take
        msg = f"{path} was replaced"
        raise FileNotFoundError(msg)
    return target


def sweep_staging(layout: Layout) -> int:
    """Move every staging directory whose owner is dead to trash; return how many."""
    swept = 0
    for name in _names(layout.staging):
        path = layout.staging / name
        lock = locks.try_exclusive(path) if path.is_dir() and not path.is_symlink() else None
        if lock is None:
            continue
        with lock:
            try:
                move_to_trash(layout, path, lock)
            except FileNotFoundError:
                continue
            swept += 1
    return swept


def empty_trash(layout: Layout, enter: EnterCandidates) -> Freed | None:
    """Unlink what is in trash and not in use; None if another process is at it.

    Raises:
        OSError: Something could not be made durable or unlinked; what is left stays for the next time.
    """
    lock = locks.try_exclusive(layout.trash)
    if lock is None:
        return None
    freed = Freed()
    with lock:
        names = _names(layout.trash)
        if not names:
            return freed
        files.sync_directory(layout.trash)
        for name in names:
            path = layout.trash / name
            if path.is_dir() and not path.is_symlink():
                _empty_directory(path, enter, freed)
            elif is_digest(digest := name.partition(".")[0]) and os.stat(path, follow_symlinks=False).st_nlink > 1:
                _put_back(layout, digest, path)  # left by a collector that died, and claimed since
            else:
                _unlink_if_free(path, freed)
    return freed


def _empty_directory(path: Path, enter: EnterCandidates, freed: Freed) -> None:
    lock = locks.try_exclusive(path)
    if lock is None:  # a reader or a saver is still in it
        return
    with lock:
        held_blobs = path / BLOBS
        entries = [held_blobs / name for name in _names(held_blobs)]
        # Last links first: they need no entry, and on a full disk they make room for the entries of the others.
        shared = [entry for entry in entries if not _unlink_if_last(entry, freed)]
        enter(
            [(entry.name, os.stat(entry, follow_symlinks=False).st_size) for entry in shared if is_digest(entry.name)]
        )
        left = [entry for entry in shared if not _unlink_if_free(entry, freed)]
        rest = [path / name for name in _names(path) if name != BLOBS]
        left += [entry for entry in rest if not _unlink_if_free(entry, freed)]
        if not left:
            if held_blobs.exists():
                links.remove_directory(held_blobs)
            links.remove_directory(path)


def _unlink_if_last(path: Path, freed: Freed) -> bool:
    return os.stat(path, follow_symlinks=False).st_nlink == 1 and _unlink_if_free(path, freed)


def _unlink_if_free(path: Path, freed: Freed) -> bool:
    """Unlink one name; False if it is the last one of a file that somebody has open (rule K)."""
    status = os.stat(path, follow_symlinks=False)
    last = status.st_nlink == 1
    if last and stat.S_ISREG(status.st_mode) and lease.ask(path) is not lease.Holding.FREE:
        return False
    links.unlink(path)
    if last:
        freed.count += 1
        freed.nbytes += status.st_size
    return True


def condemn(layout: Layout, digests: Iterable[str], is_used: Callable[[str], bool]) -> tuple[Freed, list[str]]:
    """Free the canonical blobs that nobody names any more; return what was freed and which of the digests are gone.

    The link count is looked at before and after the rename to trash: a saver may have claimed the blob in between.
    Needs no lock
    against savers, but the exclusive lock on ``trash/`` against other collectors; without it nothing is done.
    """
    freed = Freed()
    gone: list[str] = []
    lock = locks.try_exclusive(layout.trash)
    if lock is None:
        return freed, gone
    with lock:
        moved = [(digest, path) for digest in digests if (path := _condemn_one(layout, digest, is_used)) is not None]
        if moved:
            files.sync_directory(layout.trash)
        for digest, path in moved:
            if os.stat(path, follow_symlinks=False).st_nlink > 1:
                _put_back(layout, digest, path)
            elif _unlink_if_free(path, freed):
                gone.append(digest)
    return freed, gone


def _condemn_one(layout: Layout, digest: str, is_used: Callable[[str], bool]) -> Path | None:
    canonical = layout.blob(digest)
    try:
        alone = os.stat(canonical, follow_symlinks=False).st_nlink == 1
        if not alone or is_used(digest) or lease.ask(canonical) is not lease.Holding.FREE:
            return None
        target = layout.trash / f"{digest}.{uuid.uuid4().hex[:12]}"
        links.rename(canonical, target)
    except FileNotFoundError:
        return None
    return target


def _put_back(layout: Layout, digest: str, path: Path) -> None:
    with contextlib.suppress(FileExistsError):  # the name was taken meanwhile by another copy
        links.link(path, layout.blob(digest))
    links.unlink(path)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
