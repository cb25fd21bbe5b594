"""Commit the checkpoint directories of a framework, delete them only afterwards, and write them again for a resume.

This module imports no framework.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ckstore.errors import BadInput, DamagedBlob, NoSuchRef
from ckstore.integrations.own_run import RESUME_PREFIX, begin
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import expanded
from ckstore.model.reports.not_saved import NotSaved
from ckstore.ops.config_file import save_patience_of
from ckstore.ops.read.load import continue_from
from ckstore.ops.refs.find import text_of
from ckstore.ops.save.continuation import parent_at
from ckstore.ops.save.options import SaveOptions
from ckstore.store import RefLike, Store, context_of
from ckstore.training.conditions import Conditions, differences
from ckstore.training.history import run_of
from ckstore.training.newest import untried

CONDITIONS = "training"
"""The key of the conditions in the metadata of a checkpoint."""
# A cluster scheduler kills a process 30 s after SIGTERM, and the Trainer uses 3 s of this time before it saves.
_LAST_SAVE_S = 20.0
_RNG_FILE = re.compile(r"(?:rng_state(?:_(\d+))?\.pth|random_states_(\d+)\.pkl)\Z")


def commit_directory(
    store: Store,
    directory: str | os.PathLike[str],
    step: int | None,
    run: str | None,
    *,
    metrics: Mapping[str, float],
    conditions: Conditions,
    is_last: bool = False,
) -> CheckpointInfo | NotSaved:
    """Commit a directory at a step, and replace an earlier checkpoint of the same step, as after a rollback.

    `is_last` states that the training ends after this commit. The commit is then retried for `last_save_s`.

    Returns:
        The checkpoint, or `NotSaved` if the storage failed and `StoreConfig.on_failed_save` tolerates this.
    """
    # A directory whose name has no step, such as ``initial``, is committed at the next step with its name as message.
    options: SaveOptions = {"metrics": metrics, "metadata": {CONDITIONS: conditions.to_json()}, "if_exists": "replace"}
    if is_last:
        options["try_for_s"] = last_save_s(store)
    options["if_run_in_use"] = "error"
    if step is None:
        options["message"] = os.path.basename(directory)
    return store.commit(directory, step, run, on_failure=context_of(store).on_failed_save, **options)


def last_save_s(store: Store) -> float:
    """Return how many seconds the last save of a training is retried, because no later save can make up for it."""
    return max(_LAST_SAVE_S, save_patience_of(context_of(store).layout).wait_for_space_s)


def is_there(store: Store, run: str | None, step: int) -> bool:
    """Whether the run has a checkpoint at that step."""
    try:
        store.info(ref_of(store, run, step))
    except NoSuchRef:
        return False
    return True


def ref_of(store: Store, run: str | None, ref: RefLike) -> RefLike:
    """Return a ref that names its run. As in a commit, the run is `run`, the one given to `Store.open`, or ``main``."""
    if isinstance(ref, CheckpointInfo):
        return ref
    text = text_of(ref)
    return text if "@" in text else f"{run_of(store, run)}@{text}"


def keep_newest(directories: Mapping[int, Path], count: int, keep: set[Path]) -> None:
    """Delete all but the `count` newest directories and those in `keep`. The newest must be durable in the store."""
    # Sort by time and not by step, because the newest directory after a rollback has a smaller step than older ones.
    newest = sorted(directories.items(), key=lambda item: (item[1].stat().st_mtime_ns, item[0]))
    for _, directory in newest[: max(len(newest) - count, 0)]:
        # `keep` may have the best directory, which the framework reads at the end of the training.
        if directory not in keep:
            shutil.rmtree(directory)


def remove(directory: Path) -> None:
    """Remove a directory of an earlier save or resume, so that a later save or resume does not include its files."""
    try:
        shutil.rmtree(directory)
    except OSError as error:
        if not os.path.lexists(directory):
            return
        reason = error.strerror or error
        msg = f"{error.filename or directory}, which an earlier save or resume left, cannot be removed: {reason}"
        raise BadInput(msg, hint=f"remove {directory}, then start again") from error


def checked_out(store: Store, info: CheckpointInfo, directory: Path) -> None:
    """Write the files of a checkpoint."""
    store.checkout(info, directory, link="auto")


def checkout_to_resume(
    store: Store,
    run: str | None,
    ref: RefLike,
    folder: str | os.PathLike[str],
    write: Callable[[Store, CheckpointInfo, Path], None] = checked_out,
) -> tuple[CheckpointInfo, Path]:
    """Write a checkpoint below `folder` for a framework to resume from. First remove leftovers of earlier resumes."""
    # Writing a checkpoint checks every byte. With ``latest-valid``, a damaged checkpoint is skipped.
    wanted = ref_of(store, run, ref)
    # If the ref names a checkpoint of another run, a training begins in `run`, as a fork.
    begin(store, run)
    base = expanded(folder)
    tried: set[str] = set()
    info = untried(store, wanted, tried)
    base.mkdir(parents=True, exist_ok=True)
    # A resume that was killed while it wrote has left a partial checkpoint, which a framework would load.
    for old in base.glob(f"{RESUME_PREFIX}*"):
        remove(old)
    while True:
        destination = base / f"{RESUME_PREFIX}{info.step}"
        try:
            write(store, info, destination)
        except DamagedBlob:
            # Remove all files of the damaged checkpoint before the previous one is written.
            shutil.rmtree(destination, ignore_errors=True)
            tried.add(info.id)
            info = untried(store, wanted, tried)
            if info.id in tried:
                raise
        else:
            # The store does not notice that the framework loads these files, so set the parent of the next save.
            context = context_of(store)
            continue_from(context, parent_at(context, info))
            return info, destination


def with_random_states(conditions: Conditions, names: list[str]) -> Conditions:
    """Return the conditions with the ranks whose random states the Trainer or accelerate wrote to the files `names`."""
    found = [match for name in names if (match := _RNG_FILE.match(name))]
    return conditions.with_rng_of(int(match[1] or match[2] or 0) for match in found)


def inexact(
    store: Store,
    info: CheckpointInfo,
    now: Conditions,
    reading: Callable[[Conditions, Conditions, int], Iterable[str]] = lambda *_: (),
) -> tuple[str, ...]:
    """Return one sentence for each aspect that will not continue exactly on all ranks, as far as rank 0 knows.

    Args:
        store: The store.
        info: The checkpoint.
        now: The conditions of this run.
        reading: Yields sentences about samples that will be read twice or never. Its arguments are the conditions of
            the checkpoint, the conditions of this run, and the step.
    """
    try:
        recorded = Conditions.from_json(info.metadata.get(CONDITIONS))
    except BadInput:  # no conditions, or metadata of the user with the same name
        return (f"{info.name} has no record of the conditions under which it was saved",)
    with store.open_checkpoint(info) as checkpoint:
        names = [file.path for file in checkpoint.files()]
    if names:
        recorded = with_random_states(recorded, names)
    return (*differences(recorded, now, range(now.world_size)), *reading(recorded, now, info.step))
