"""Survey a store without reading data: leftovers in staging and trash, owners of files, and who may change them."""

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

    link_most: int = 0  # most names that a blob has
    writable_blobs: int = 0  # blobs with write permission for any user
    foreign_count: int = 0  # files and directories of another owner than the root's
    open_to_all: list[str] = field(default_factory=list)  # paths that any user may change


def survey(layout: Layout) -> Survey:
    """Inspect every canonical blob, every directory and every small file, but no other names of blobs."""
    done = Survey()
    owner = dirfd_stat.status(layout.root).st_uid
    for path, status in _everything(layout):
        if stat.S_ISLNK(status.st_mode):  # a tag; its permissions mean nothing
            continue
        done.foreign_count += status.st_uid != owner
        if status.st_mode & 0o002:
            done.open_to_all.append(path)
        if is_digest(os.path.basename(path)) and stat.S_ISREG(status.st_mode):
            done.link_most = max(done.link_most, status.st_nlink)
            # Any write bit: a program of that user could write into every checkpoint that has the blob.
            done.writable_blobs += bool(status.st_mode & 0o222)
    return done


def _everything(layout: Layout) -> Iterator[tuple[str, os.stat_result]]:
    yield from _entries(layout.root)
    for folder in (layout.refs, layout.pins, layout.staging, layout.trash, layout.blobs):
        yield from _entries(folder)
    for name in trash.names_in(layout.blobs):
        yield from _entries(layout.blobs / name)
    for path, place in layout.places():
        if (status := dirfd_stat.find(place)) is None:  # it went since it was listed
            continue
        yield str(path), status
        # One descriptor for both names: of 20,000 checkpoints this loop is what doctor takes longest for.
        for name, status in dirfd_stat.found_in(place, (MANIFEST, BLOBS)).items():
            yield f"{path}/{name}", status


def _entries(folder: StorePath) -> Iterator[tuple[str, os.stat_result]]:
    return ((f"{folder}/{name}", status) for name, status in dirfd_stat.statuses(folder))


def leftovers(folder: StorePath, dead: frozenset[str] | None = None) -> list[Leftover]:
    """Return the entries of ``staging/`` or ``trash/``, sorted by name."""
    now_s = time.time()
    found = []
    for path, status in sorted(_entries(folder), key=lambda entry: entry[0]):
        name = os.path.basename(path)
        # A file with another name is in a checkpoint, and freeing this name gives nothing.
        if stat.S_ISDIR(status.st_mode):
            nbytes = sum(inner.st_size for _, inner in dirfd_stat.walk(folder / name) if inner.st_nlink == 1)
        else:
            nbytes = status.st_size if status.st_nlink == 1 else 0
        found.append(
            Leftover(
                name=name,
                # ctime: a rename sets it, so it tells since when a thing is in trash. Clocks of hosts may differ,
                # hence the max.
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
    """Return the name of a user, or ``uid N`` without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
