"""Hold a checkpoint while something is said about it (tag, pin, annotation), so that no process drops it meanwhile."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ckstore.errors import NoSuchRef
from ckstore.fs import files, locks
from ckstore.objects import far_locks
from ckstore.objects.checkpoints import id_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.ops.context import Context


@contextmanager
def held(context: Context, info: CheckpointInfo, *, is_durable: bool = False) -> Iterator[locks.DirectoryLock]:
    """Lock the directory of a checkpoint for use (rule L), after making sure that it survives a power cut (rule F)."""
    # Its run is locked for use before it, so that no save replaces the checkpoint meanwhile. With `is_durable` the
    # caller has made sure of it.
    context.check_writable()
    path = context.layout.checkpoint(info.run, info.step)
    with ExitStack() as locked:
        try:
            # The run before the checkpoint, the order of all who take both (docs/adr/0004): else two would wait for
            # each other.
            run_lock = locked.enter_context(far_locks.lock_run(context.layout, info.run, exclusive=False))
            lock = locked.enter_context(locks.lock_shared(path))
        except FileNotFoundError:
            raise gone(info) from None
        # Under both locks: the checkpoint that was found before may have been replaced.
        if id_at(path) != info.id or not lock.names(path):
            raise gone(info)
        for parent in () if is_durable else (path.parent, context.layout.checkpoints, context.layout.staging):
            files.sync_directory(parent)
        # After the fsyncs, which a server may answer late, and right before the caller writes.
        run_lock.check()
        yield lock


def gone(info: CheckpointInfo) -> NoSuchRef:
    """Return the error for a checkpoint that was there a moment ago."""
    msg = f"{info.name} with id {info.id} is no longer there"
    return NoSuchRef(msg, hint="it was deleted or replaced meanwhile; ckstore log shows what there is")
