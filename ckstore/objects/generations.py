"""Find the generations of a checkpoint, and publish the next generation in order to compact or evict it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress

from ckstore.errors import InUse
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.dirfd_stat import OpenDir, StorePath
from ckstore.model.names import CheckpointKey
from ckstore.objects import store_locks
from ckstore.objects.checkpoints import id_at
from ckstore.objects.documents import marks
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.objects.layout import ANNOTATIONS, Layout
from ckstore.objects.publish import give_name, sync_parents
from ckstore.objects.staging import Staging

_RUN_TIMEOUT_S = 30.0


def other_generations(layout: Layout, key: CheckpointKey, id: str) -> list[CheckpointKey]:
    """Return the other published generations of the checkpoint with this id, from the earliest to the latest.

    Generations with an unreadable manifest are included, because only a generation of the checkpoint can have such a
    name.
    """
    # Try the possible names instead of listing the run: a rule may drop thousands of checkpoints, and would list the
    # run for each of them.
    first = key.any_generation
    found = [one for number in range(key.generation) if _is_form(layout, one := _generation(first, number), id)]
    number = key.generation + 1
    while not key.is_draft and dirfd_stat.is_directory(layout.checkpoint(one := _generation(first, number))):
        found += [one] if _is_form(layout, one, id) else []
        number += 1
    return found


def _generation(first: CheckpointKey, number: int) -> CheckpointKey:
    return first._replace(directory=f"{first.directory}.{number}") if number else first


def _is_form(layout: Layout, key: CheckpointKey, id: str) -> bool:
    path = layout.checkpoint(key)
    return dirfd_stat.is_directory(path) and id_at(path) in {id, None}


def publish_generation(
    layout: Layout,
    staging: Staging,
    former: CheckpointKey,
    checkpoint: str,
    check: Callable[[locks.DirectoryLock], object] | None = None,
) -> tuple[CheckpointKey, locks.DirectoryLock]:
    """Publish the sealed `staging` durably as the next generation of a checkpoint.

    Args:
        layout: The store.
        staging: The directory to publish.
        former: The current generation.
        checkpoint: The id of the checkpoint.
        check: Called before the rename with the exclusive lock of the former generation.

    Returns:
        The key of the new generation, and the exclusive lock on the former one. The caller must drop the former
        generation.

    Raises:
        InUse: A process uses the former generation, it is damaged, or its directory has another checkpoint.
        UnknownOutcome: The generation was published, but perhaps not durably.
    """
    path = layout.checkpoint(former)
    with ExitStack() as held:
        # Open the parents before the rename, so that only the syncs can fail after it.
        parents = [held.enter_context(OpenDir(place)) for place in (path.parent, layout.checkpoints, layout.staging)]
        run_lock = held.enter_context(
            store_locks.lock_run(layout, former.run, exclusive=True, timeout_s=_RUN_TIMEOUT_S)
        )
        # The lock must be exclusive: an annotation or a mark that is written now would be deleted with the old
        # directory.
        lock = locks.try_exclusive(path)
        if lock is None:
            raise InUse(f"a process is using {path}")
        try:
            _check(path, lock, checkpoint)
            if check is not None:
                check(lock)
            take_annotations(lock, staging)
            run_lock.check()
            key, _ = give_name(layout, staging.path, staging.lock, *former.run_step, checkpoint, former=former)
            sync_parents(parents)
        except BaseException:  # this includes Ctrl-C, whose traceback would keep the lock
            lock.release()
            raise
        return key, lock


def _check(path: StorePath, lock: locks.DirectoryLock, checkpoint: str) -> None:
    if id_at(path) != checkpoint:
        raise InUse(f"{path} holds another checkpoint")
    # The files of a damaged checkpoint must remain in the directory in which a repair searches for them.
    if marks.identity(lock.fd):
        raise InUse(f"{path} is marked as damaged")


def take_annotations(lock: locks.DirectoryLock, staging: Staging) -> None:
    """Copy the annotations of a checkpoint, which the caller has locked, to the staging directory of its successor."""
    with suppress(FileNotFoundError):
        data = files.read_file(ANNOTATIONS, most_bytes=ANNOTATIONS_MAX_BYTES, dir_fd=lock.fd)
        # The permissions of the copy follow from those of its directory.
        files.create_file(staging.lock.inside / ANNOTATIONS, data, mode=files.mode_in(staging.lock.fd))
        files.sync_directory(staging.lock.inside)
