"""Replace a damaged blob by a good copy in every checkpoint that names it, and under its canonical name.

Damaged copies are moved to ``quarantine/``. ckstore never reads data from the files in this directory, and never
deletes them. Source: docs/format/v1.md, "quarantine".
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

# The timeout for the lock of a checkpoint. A process that holds an exclusive lock for longer is deleting the
# checkpoint, and a save must not wait for the end of the deletion.
WAIT_S = 2.0
_FRESH = ".manifest-new"


class Given(NamedTuple):
    """The result of replacing the copies of a blob."""

    checkpoint_count: int  # how many published checkpoints were changed
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
    """Make every published checkpoint with the blob `digest` use the inode of `good`.

    Checkpoints in trash, which `undo` can restore, are changed in the same way. If a checkpoint is marked as damaged
    and has lost the name of the blob, the name is restored. The blob is removed from the marks of changed checkpoints.
    After an error, some checkpoints are changed and others are not.

    Args:
        layout: The store.
        digest: The blob.
        good: A good copy.
        temporary: Returns an unused name in a directory of the caller, on the same filesystem.
        spare: The inode numbers of other good copies, which are not replaced.
        lacking: Checkpoints that need the blob but do not have it.

    Returns:
        How many checkpoints were changed, and which ones another process had locked for too long.
    """
    # Search the directories instead of the catalog, so that no checkpoint is missed. One rename changes each name, so a
    # reader sees the old or the new inode. Compare inodes, because a name of a good copy need not be changed.
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
                # If the checkpoint has lost its directory blobs/, create it and make its name durable before adding a
                # name to it.
                if present is None and links.make_directory(name.parent):
                    files.sync_directory(path)
                put_name(name, good, temporary())
                # Sync the name before changing the mark (law H1). Otherwise, a power cut could restore the damaged file
                # without a mark.
                files.sync_directory(name.parent)
                marks.forget_blob(lock, digest)
        except FileNotFoundError:  # the checkpoint was deleted
            return False
        return True

    return change_everywhere(layout, lambda path, key: relink(path, needs=key in lacking))


def change_everywhere(layout: Layout, change: Callable[[StorePath, CheckpointKey | None], bool]) -> Given:
    """Change every checkpoint, published or in trash, with the function `change`.

    `change` gets the directory and the key of a checkpoint, or None as the key of a checkpoint in trash. It returns
    whether it changed something. If `change` raises `InUse`, the checkpoint remains unchanged.
    """
    # Begin with the trash: a checkpoint that is restored meanwhile is then found among the published ones.
    for entry in trash.names_in(layout.trash):
        if trash.former_place(entry) is not None:
            with suppress(InUse):  # gc is deleting it
                change(layout.trash / entry, None)
    count = 0
    held: dict[CheckpointKey, InUse] = {}
    for key, _ in layout.published():
        try:
            count += change(layout.checkpoint(key), key)
        except InUse as error:  # usually it is being deleted, and needs no repair
            held[key] = error
    return Given(count, held)


def _has_lost(path: StorePath, digest: str) -> bool:
    """Whether a checkpoint that lacks the blob `digest` needs it. Only a marked checkpoint is checked."""
    if not marks.is_marked(path):
        return False
    try:
        # Searching for the text is enough: in the worst case, the checkpoint gets a name that it does not need.
        return digest.encode("ascii") in files.read_file(path / MANIFEST, most_bytes=MANIFEST_MAX_BYTES)
    except (CkstoreError, FileNotFoundError):  # without a manifest, the checkpoint cannot be healed
        return False


def put_name(name: StorePath, good: StorePath, temporary: StorePath) -> None:
    """Replace a name by a good copy with one rename. `temporary` is an unused name on the same filesystem."""
    if links.replace_name(good, name, temporary):
        return
    # The file cannot have another link, so the checkpoint gets its own copy. The copy is written under the temporary
    # name, so that a reader sees either the damaged blob or the complete good one.
    files.create_blob(
        temporary, memoryview(files.read_file(good, most_bytes=dirfd_stat.status(good).st_size, is_blob=True))
    )
    links.rename(temporary, name)


def restore_names(layout: Layout, checkpoint: StorePath, wanted: Iterable[tuple[str, int | None]]) -> set[str]:
    """Link blobs of a published checkpoint to their canonical names, and return the digests that were linked.

    `wanted` are the digests and sizes of the blobs. Without a size, any size is accepted.
    """
    # Link only blobs that have their size and a stamp and are not known to be damaged. The stamp alone is not enough: a
    # user who finds damage in another user's file can remove the canonical name, but cannot remove the stamp. If a blob
    # cannot be linked, the only effect is that the next save of these bytes writes them again.
    given: set[str] = set()
    try:
        # Lock the checkpoint for use, so that it is not deleted while its blobs are linked.
        with locks.lock_shared(checkpoint), OpenDir(checkpoint / BLOBS) as copies, OpenDir(layout.blobs) as canonical:
            for digest, nbytes in wanted:
                if _link(copies.inside / digest, canonical.inside / fan_out(digest), nbytes, layout):
                    given.add(digest)
    except (FileNotFoundError, InUse):  # the checkpoint was dropped or is being deleted
        return given
    return given


def _link(copy: StorePath, folder: StorePath, nbytes: int | None, layout: Layout) -> bool:
    try:
        status = dirfd_stat.status(copy)
        if not blobs.looks_untouched(status, status.st_size if nbytes is None else nbytes):
            return False
        if dirfd_stat.exists(_aside(layout, copy.name, status)):  # the file is in quarantine, so it is damaged
            return False
        links.make_directory(folder)
        # A link never replaces a canonical name that another process has created meanwhile.
        return links.try_link(copy, folder / copy.name)
    except (FileNotFoundError, FileExistsError):  # the blob was deleted, or another process has restored the name
        return False


def put_aside(layout: Layout, digest: str, names: Iterable[StorePath]) -> list[StorePath]:
    """Link each damaged copy of a blob into quarantine, and remove its canonical name. Return the new names.

    Names in checkpoints remain until a good copy replaces them. After an error, some copies may be in quarantine.
    """
    canonical = layout.blob(digest)
    # The directory may be missing, because a user may delete it together with its files.
    if links.make_directory(layout.quarantine):
        files.sync_directory(layout.root)
    made = []
    # Begin with the canonical name, so that saves cannot find the damaged blob if this process dies.
    for name in sorted(names, key=lambda name: name != canonical):
        try:
            status = dirfd_stat.status(name)
        except FileNotFoundError:
            continue
        aside = _aside(layout, digest, status)
        # A directory with the name of a blob cannot have a second name, so it is moved.
        if stat.S_ISDIR(status.st_mode):
            links.rename(name, aside)
        elif name == canonical:
            # Both names have the same inode, and renaming one over the other would do nothing.
            if dirfd_stat.exists(aside):
                links.unlink(aside)
            links.rename(canonical, aside)
        elif not dirfd_stat.exists(aside) and not links.try_link(name, aside):
            continue
        made.append(aside)
    if made:
        # Sync the new parent first (law N4), so that a power cut cannot remove the only name of the evidence.
        files.sync_directory(layout.quarantine)
        if dirfd_stat.is_directory(canonical.parent):
            files.sync_directory(canonical.parent)
    return made


def _aside(layout: Layout, digest: str, status: os.stat_result) -> StorePath:
    """Return the name in quarantine of a damaged file."""
    # The name contains the inode number, because two damaged copies of one blob are two files, and both are evidence.
    return layout.quarantine / f"{digest}.{status.st_ino}"


def put_document(lock: locks.DirectoryLock, name: str, data: bytes) -> None:
    """Write a document into the directory of a checkpoint durably and atomically."""
    if _FRESH in os.listdir(lock.fd):  # a repair that was killed has left this file
        links.unlink(_FRESH, dir_fd=lock.fd)
    files.create_file(_FRESH, data, mode=0o444, dir_fd=lock.fd)
    links.rename(_FRESH, name, dir_fd=lock.fd)
    files.sync_open_directory(lock.fd)
