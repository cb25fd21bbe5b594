"""Determine whether a training by a framework is new or continues a checkpoint.

This module imports no framework.
"""

from __future__ import annotations

import os
from pathlib import Path

from ckstore.errors import DamagedBlob, NoSuchRef
from ckstore.fs import files
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import AUTO
from ckstore.ops.read.load import continue_from
from ckstore.ops.save import continuation
from ckstore.store import Store, context_of
from ckstore.training.history import run_of

RESUME_PREFIX = ".ckstore-resume-"
"""The prefix of the directories from which a run resumes. The next resume removes these directories."""
_HEAD_BYTES = 2**16
"""The number of bytes compared at the start of each file. They differ between the states of two trainings."""


def begin(store: Store, run: str | None) -> None:
    """Begin a training without a parent. To continue a checkpoint, call `continue_from` afterwards."""
    if run == AUTO:
        # Each training gets a new run. The first save creates it, so a rank that only loads does not create a run.
        store._auto_run = None  # noqa: SLF001 - see `Store.save`
    else:
        continuation.begin_training(context_of(store), run_of(store, run))


def check_free(store: Store, run: str | None) -> None:
    """Raise `RunInUse` now if the first save of the training would raise it."""
    if run != AUTO:
        continuation.check_free(context_of(store), run_of(store, run))


def continue_directory(store: Store, run: str | None, directory: str | os.PathLike[str], step: int | None) -> None:
    """Continue the checkpoint that was committed from a directory, or begin a training if the store lacks it."""
    context, directory = context_of(store), Path(directory)
    if directory.name.startswith(RESUME_PREFIX) and is_loaded(store, run):
        return
    begin(store, run)
    info = None if step is None or run == AUTO else _committed_from(store, run_of(store, run), directory, step)
    if info is not None:
        continue_from(context, continuation.parent_at(context, info))


def is_loaded(store: Store, run: str | None) -> bool:
    """Whether this process has loaded the checkpoint that the next save of a run continues."""
    parent = None if run == AUTO else continuation.parent_in(context_of(store), run_of(store, run))
    return parent is not None and parent.origin == "loaded"


def _committed_from(store: Store, run: str, directory: Path, step: int) -> CheckpointInfo | None:
    """Return the checkpoint of a step if the directory has all its files, with equal sizes and equal first bytes."""
    try:
        info = store.info(f"{run}@{step}")
    except NoSuchRef:
        return None
    with store.open_checkpoint(info) as checkpoint:
        found = [file for file in checkpoint.files() if file.kind == "file"]
        for file in found:
            try:
                with files.opened_regular(directory / file.path) as fd:
                    if os.fstat(fd).st_size != file.nbytes:
                        return None
                    head = os.read(fd, _HEAD_BYTES)
            except (OSError, DamagedBlob):  # it does not exist, or is not a file
                return None
            with checkpoint.open_file(file.path) as stored:
                if stored.read(len(head)) != head:
                    return None
    return info if found else None
