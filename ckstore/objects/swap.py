"""Put another directory in the place of a checkpoint that holds the same: the last step of a compaction."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from ckstore.errors import InUse, UnknownOutcome
from ckstore.fs import files, locks
from ckstore.fs.held import Held
from ckstore.fs.inside import Inside
from ckstore.model.names import CheckpointKey
from ckstore.objects import store_locks
from ckstore.objects.checkpoints import id_at
from ckstore.objects.documents import marks
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.objects.layout import ANNOTATIONS, Layout
from ckstore.objects.shared import two_renames
from ckstore.objects.staging import Staging

_RUN_TIMEOUT_S = 30.0


def swap(layout: Layout, staging: Staging, key: CheckpointKey, checkpoint: str) -> tuple[Inside, locks.DirectoryLock]:
    """Exchange a checkpoint with the sealed `staging`, durably; return the old one's place, and its exclusive lock."""
    # `InUse`: a process uses it, or it is damaged or another one by now. Only after `UnknownOutcome` was it exchanged.
    target = layout.checkpoint(*key)
    with ExitStack() as held:
        # Opened before the rename: after it, only the sync itself may fail.
        parents = [held.enter_context(Held(path)) for path in (target.parent, layout.checkpoints, layout.staging)]
        # No save replaces it meanwhile, and none judges the one that is about to go (docs/adr/0004).
        run_lock = held.enter_context(store_locks.lock_run(layout, key[0], exclusive=True, timeout_s=_RUN_TIMEOUT_S))
        two_renames.complete_run(layout, key)
        # Against all others: an annotation or a mark that is written now would be lost with the old directory.
        lock = locks.try_exclusive(target)
        if lock is None:
            raise InUse(f"a process is using {target}")
        try:
            _check(target, lock, checkpoint)
            take_annotations(lock, staging)
            run_lock.check()
            old = two_renames.exchange(layout, staging.path, key, run_lock, staging.lock)
        except BaseException:
            lock.release()
            raise
        try:
            # The run first, as the new parent (law N4); staging/ last.
            for parent in parents:
                files.sync_open_directory(parent.fd)
        except BaseException as error:  # also Ctrl-C, whose traceback would keep the lock
            lock.release()
            if not isinstance(error, OSError):
                raise
            raise UnknownOutcome(
                f"{target} was compacted, but a directory could not be made durable: {error}",
                hint="both forms hold the same; open the store again",
            ) from error
        return old, lock


def _check(target: Inside, lock: locks.DirectoryLock, checkpoint: str) -> None:
    if id_at(target) != checkpoint:
        raise InUse(f"{target} was replaced meanwhile")
    # Its files may be wrong: they must stay where a repair finds them.
    if marks.identity(lock.fd):
        raise InUse(f"{target} is marked as damaged")


def take_annotations(lock: locks.DirectoryLock, staging: Staging) -> None:
    """Copy what was noted of a checkpoint, which the caller has locked, into the staging of its successor."""
    with suppress(FileNotFoundError):
        data = files.read_file(ANNOTATIONS, most_bytes=ANNOTATIONS_MAX_BYTES, dir_fd=lock.fd)
        # The next writer of a group must be able to read them, and other users not: as where they were written first.
        files.create_file(staging.lock.inside / ANNOTATIONS, data, mode=files.mode_in(staging.lock.fd))
        files.sync_directory(staging.lock.inside)
