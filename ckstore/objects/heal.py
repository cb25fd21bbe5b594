"""Replace a damaged blob by a good copy in every checkpoint that names it, and under its canonical name.

Damaged copies are moved to ``quarantine/``. No file there is ever used, and only its owner removes it. Source:
docs/format/v1.md, "quarantine".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

from ckstore.errors import CkstoreError, InUse
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.dirfd_stat import OpenDir, StorePath
from ckstore.model.digest import fan_out
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.names import CheckpointKey
from ckstore.objects import blobs, trash
from ckstore.objects.documents import marks
from ckstore.objects.layout import BLOBS, MANIFEST, Layout

# A process that holds it for longer is taking the checkpoint apart; a save must not wait for that.
WAIT_S = 2.0
_FRESH = ".manifest-new"


class Given(NamedTuple):
    """The result of replacing the copies of a blob."""

    checkpoint_count: int  # how many checkpoints were changed
    held: dict[CheckpointKey, InUse]  # checkpoints that another process had locked for too long


def relink_everywhere(
    layout: Layout,
    digest: str,
    good: StorePath,
    temporary: Callable[[], StorePath],
    spare: Collection[int] = (),
    *,
    lacking: Collection[CheckpointKey] = (),
) -> Given:
    """Make every published checkpoint with the blob `digest` use the inode of `good`. Return how many changed.

    Checkpoints in trash, which `undo` can restore, are changed in the same way.
    """
    # One that is marked and has lost the name gets it back, and so does one in `lacking`, which is known to need it.
    # `temporary` gives fresh names in a directory of the caller, on the same filesystem; names of other good copies,
    # whose inodes are in `spare`, stay. What an error leaves is changed in part.
    # The directories are looked at, not the catalog, so that none is forgotten. Each name changes by one rename, so a
    # reader sees the old inode or the new one; marks that say the blob is damaged say so no more.
    # By inode: a name that is the good copy already needs no rename and no fsync.
    right = {dirfd_stat.status(good).st_ino, *spare}

    def relink(path: StorePath, *, needs: bool = False) -> bool:
        name = path / BLOBS / digest
        try:
            found = dirfd_stat.find(name)
            present = None if found is None else found.st_ino
            if present in right:
                return False
            if present is None and not needs and not _has_lost(path, digest):
                return False
            with locks.lock_shared(path, timeout_s=WAIT_S) as lock, marks.kept_unless_durable(lock):
                # A checkpoint that lost its whole blobs/ gets the directory back first, durably: a name in it would
                # else be lost.
                if present is None and links.make_directory(name.parent):
                    files.sync_directory(path)
                put_name(name, good, temporary())
                # Before the mark goes (law H1): a power cut could bring the damaged file back, and then nothing would
                # say so.
                files.sync_directory(name.parent)
                marks.forget_blob(lock, digest)
        except FileNotFoundError:  # it is gone
            return False
        return True

    # Trash first: a checkpoint that is brought back meanwhile is published when the others are listed.
    for entry in trash.names_in(layout.trash):
        if trash.former_place(entry) is not None:
            with suppress(InUse):  # gc is taking it apart
                relink(layout.trash / entry)
    changed = 0
    held: dict[CheckpointKey, InUse] = {}
    for key, _ in layout.published():
        try:
            changed += relink(layout.checkpoint(key), needs=key in lacking)
        except InUse as error:  # usually it is being taken apart, and needs nothing any more
            held[key] = error
    return Given(changed, held)


def _has_lost(path: StorePath, digest: str) -> bool:
    """Whether a checkpoint without this name needs it. Only a checkpoint with a mark of damage is checked."""
    if not marks.is_marked(path):
        return False
    try:
        # A search for the text is enough: at worst the checkpoint gets a name that it does not need.
        return digest.encode("ascii") in files.read_file(path / MANIFEST, most_bytes=MANIFEST_MAX_BYTES)
    except (CkstoreError, FileNotFoundError):  # without a manifest nothing heals it
        return False


def put_name(name: StorePath, good: StorePath, temporary: StorePath) -> None:
    """Replace a name by a good copy with one rename. `temporary` is an unused name on the same filesystem."""
    if links.replace_name(good, name, temporary):
        return
    # No further link: the checkpoint gets a copy of its own.
    # Written whole and fsynced under another name: a reader meanwhile sees the damaged blob, never half a good one.
    files.create_blob(
        temporary, memoryview(files.read_file(good, most_bytes=dirfd_stat.status(good).st_size, is_blob=True))
    )
    links.rename(temporary, name)


def restore_names(layout: Layout, checkpoint: StorePath, wanted: Iterable[tuple[str, int | None]]) -> set[str]:
    """Link the blobs of a published checkpoint to their canonical names. Return the blobs that have theirs."""
    # Only what is untouched by size and time, and not known to be damaged: a member of a group who finds damage can
    # withdraw the name that saves look for, but cannot change the time of another user's file. Without that name
    # nothing is lost but a chance to deduplicate, so what cannot be linked is left to the next save of those bytes.
    given: set[str] = set()
    try:
        # Locked for use, so that gc does not take the checkpoint apart while its copies are linked.
        with locks.lock_shared(checkpoint), OpenDir(checkpoint / BLOBS) as copies, OpenDir(layout.blobs) as canonical:
            for digest, nbytes in wanted:
                if _link(copies.inside / digest, canonical.inside / fan_out(digest), nbytes, layout):
                    given.add(digest)
    except (FileNotFoundError, InUse):  # dropped
        return given
    return given


def _link(copy: StorePath, folder: StorePath, nbytes: int | None, layout: Layout) -> bool:
    try:
        status = dirfd_stat.status(copy)
        if not blobs.looks_untouched(status, status.st_size if nbytes is None else nbytes):
            return False
        if dirfd_stat.exists(_aside(layout, copy.name, status)):  # damaged, in whatever checkpoint it is
            return False
        links.make_directory(folder)
        # link never replaces: a canonical name that another save made meanwhile stays.
        return links.try_link(copy, folder / copy.name)
    except (FileNotFoundError, FileExistsError):  # taken away, or restored by another process
        return False


def put_aside(layout: Layout, digest: str, names: Iterable[StorePath]) -> list[StorePath]:
    """Move each damaged copy of a blob to quarantine, and remove its canonical name. Return the new names."""
    # Names in checkpoints stay until a good copy takes their place. After an error those before it are put aside.
    canonical = layout.blob(digest)
    made = []
    # The canonical name first: a process that dies here leaves no damaged blob for saves to find.
    for name in sorted(names, key=lambda name: name != canonical):
        try:
            status = dirfd_stat.status(name)
        except FileNotFoundError:
            continue
        aside = _aside(layout, digest, status)
        # A directory can have no second name, so it is moved.
        if stat.S_ISDIR(status.st_mode):
            links.rename(name, aside)
        elif name == canonical:
            if dirfd_stat.exists(aside):  # of the same inode: renaming one name over the other would do nothing
                links.unlink(aside)
            links.rename(canonical, aside)
        elif not dirfd_stat.exists(aside) and not links.try_link(name, aside):
            continue
        made.append(aside)
    if made:
        # The new parent first (law N4): a power cut must not lose the only name of the evidence.
        files.sync_directory(layout.quarantine)
        if dirfd_stat.is_directory(canonical.parent):
            files.sync_directory(canonical.parent)
    return made


def _aside(layout: Layout, digest: str, status: os.stat_result) -> StorePath:
    """Return the name in quarantine of a damaged file."""
    # The name contains the inode, because two damaged copies of one blob are two files, and each is evidence.
    return layout.quarantine / f"{digest}.{status.st_ino}"


def put_document(lock: locks.DirectoryLock, name: str, data: bytes) -> None:
    """Write a document into the directory of a checkpoint durably and atomically."""
    if _FRESH in os.listdir(lock.fd):  # left by a repair that was killed
        links.unlink(_FRESH, dir_fd=lock.fd)
    files.create_file(_FRESH, data, mode=0o444, dir_fd=lock.fd)
    links.rename(_FRESH, name, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)
