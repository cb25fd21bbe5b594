"""Survey a store without reading data: leftovers in staging and trash, and the owners and permissions of files."""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.names import key_of
from ckstore.model.reports.gc_report import Leftover
from ckstore.objects import trash
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, MANIFEST, Layout


@dataclass(slots=True)
class Survey:
    """The properties of the files of a store."""

    link_most: int = 0  # the largest link count of a blob
    writable_blobs: int = 0  # the number of blobs with a write permission
    foreign_count: int = 0  # the number of files and directories whose owner is not the owner of the root
    open_to_all: list[str] = field(default_factory=list)  # the paths that every user may change


def survey(layout: Layout) -> Survey:
    """Inspect every canonical blob, the directory and the manifest of each checkpoint, and small files of the store."""
    done = Survey()
    owner = dirfd_stat.status(layout.root).st_uid
    for path, status in _everything(layout):
        if stat.S_ISLNK(status.st_mode):  # it is a tag; permissions of symlinks have no effect
            continue
        done.foreign_count += status.st_uid != owner
        if status.st_mode & 0o002:
            done.open_to_all.append(path)
        if is_digest(os.path.basename(path)) and stat.S_ISREG(status.st_mode):
            done.link_most = max(done.link_most, status.st_nlink)
            # With any write permission, a program could write into every checkpoint that has the blob.
            done.writable_blobs += bool(status.st_mode & 0o222)
    return done


def _everything(layout: Layout) -> Iterator[tuple[str, os.stat_result]]:
    yield from _entries(layout.root)
    for folder in (*layout.directories, layout.locks, layout.downloads.parent):
        yield from _entries(folder)
    for name in trash.names_in(layout.blobs):
        yield from _entries(layout.blobs / name)
    for path, place in layout.places():
        if (status := dirfd_stat.find(place)) is None:  # it was removed after it was listed
            continue
        yield str(path), status
        # Find both names through one descriptor, because for 20,000 checkpoints this loop is the slowest part of
        # doctor.
        for name, status in dirfd_stat.found_in(place, (MANIFEST, BLOBS)).items():
            yield f"{path}/{name}", status


def _entries(folder: StorePath) -> Iterator[tuple[str, os.stat_result]]:
    return ((f"{folder}/{name}", status) for name, status in dirfd_stat.statuses(folder))


def leftovers(folder: StorePath, dead: frozenset[str] | None = None) -> list[Leftover]:
    """Return the entries of ``staging/`` or ``trash/``, sorted by name. `dead` has the names of dead stagings."""
    now_s = time.time()
    found = []
    for path, status in sorted(_entries(folder), key=lambda entry: entry[0]):
        name = os.path.basename(path)
        # A file with another link is in a checkpoint, so unlinking this name frees nothing.
        if stat.S_ISDIR(status.st_mode):
            nbytes = sum(inner.st_size for _, inner in dirfd_stat.walk(folder / name) if inner.st_nlink == 1)
        else:
            nbytes = status.st_size if status.st_nlink == 1 else 0
        found.append(
            Leftover(
                name=name,
                # The rename to trash sets ctime. The age may seem negative, because the clocks of hosts differ.
                age_s=max(now_s - status.st_ctime, 0.0),
                nbytes=nbytes,
                owner=user_name(status.st_uid),
                alive=dead is not None and name not in dead,
            )
        )
    return found


def marked(layout: Layout) -> list[str]:
    """Return the checkpoints that are marked as damaged, as ``RUN@STEP``."""
    keys = (key_of(path.parent.name, path.name) for path in marks.marked(layout) if marks.is_marked(path))
    return [f"{run}@{step}" for run, step in sorted({key.run_step for key in keys if key is not None})]


@cache
def user_name(uid: int) -> str:
    """Return the name of a user, or ``uid N`` if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
