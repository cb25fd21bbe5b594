"""accelerate: make `Accelerator.save_state` also commit its files, and let `load_state` load from the store."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ckstore.errors import BadInput, CkstoreWarning
from ckstore.integrations import own_run
from ckstore.integrations.directories import (
    checkout_to_resume,
    commit_directory,
    inexact,
    is_there,
    keep_newest,
    remove,
    with_random_states,
)
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.not_saved import NotSaved
from ckstore.store import Store
from ckstore.training.capture import warn_of_place
from ckstore.training.conditions import Conditions
from ckstore.training.hyperparameters import overwritten, settings_of
from ckstore.training.loader import batches_of_prepared, description, is_inside_epoch, position_change
from ckstore.training.processes import is_first, once_for_all, wait_for_all

_PREFIX = "ckstore:"
_INSTEAD = (
    "DataLoaderConfiguration(use_stateful_dataloader=True) continues at the saved position, as does a script that "
    "calls accelerator.skip_first_batches"
)
_NUMBER = re.compile(r"(\d+)\D*\Z")


def install(accelerator: Any, store: Store, run: str | None = None) -> Installed:
    """Make an `Accelerator` keep its checkpoints in a store. Call this once after creating it.

    ``accelerator.save_state(directory)`` then commits the directory after all processes have written to it. This works
    with every backend, including FSDP and DeepSpeed. ``save_state`` then also accepts ``step`` and ``metrics``. Without
    ``step``, the number in the name of the directory is the step. If the name has no number, the directory is committed
    at the next step of the run, with its name as the message. ``accelerator.load_state("ckstore:latest-valid")``
    resumes from the newest valid checkpoint of the store, and ``ckstore:REF`` resumes from any other checkpoint.
    ckstore applies ``total_limit`` instead of accelerate, and deletes old directories only after it has committed the
    new one.

    Args:
        accelerator: An `accelerate.Accelerator`.
        store: The store.
        run: Name of the run. If None, the run given to `Store.open`, or ``main``. ``auto`` creates a new run for each
            training.
    """
    return Installed(accelerator, store, run)


class Installed:
    """The connection between an `Accelerator` and a store. `install` returns it.

    Attributes:
        last: The last committed checkpoint, on every process. A failed commit that `StoreConfig.on_failed_save`
            tolerates does not change `last`, and the directory is kept.
        resumed_inexactly: One sentence for each aspect that did not continue exactly at the last load from the store,
            and for each hyper-parameter of an optimizer that this load replaced.
    """

    def __init__(self, accelerator: Any, store: Store, run: str | None) -> None:
        self.last: CheckpointInfo | None = None
        self.resumed_inexactly: tuple[str, ...] = ()
        self._accelerator = accelerator
        self._store = store
        self._run = run
        self._begun = False
        self._keep_count: int | None = accelerator.project_configuration.total_limit
        # accelerate deletes the oldest directory before it writes, so a failed save would leave one directory fewer.
        accelerator.project_configuration.total_limit = None
        self._save: Callable[..., Any] = accelerator.save_state
        self._load: Callable[..., Any] = accelerator.load_state
        accelerator.save_state = self.save_state
        accelerator.load_state = self.load_state

    def save_state(
        self,
        output_dir: str | None = None,
        safe_serialization: bool = True,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        **options: Any,
    ) -> Any:
        """Save like `Accelerator.save_state`, then commit the directory."""
        directory = self._directory(output_dir)
        wanted = _step_of(directory) if step is None else step
        # Refuse a run that belongs to another training before any directory is changed.
        once_for_all(self._begin)
        # accelerate refuses an existing directory, such as one that was written before a rollback or a kill.
        if self._names_itself and wanted is not None:
            once_for_all(lambda: self._make_way(directory, wanted))
        if not self._conditions().dataloader_resumes:
            warn_of_place(self._accelerator._dataloaders[0], _INSTEAD)  # noqa: SLF001 - the prepared loaders
        result = self._save(output_dir, safe_serialization, **options)
        # accelerate's `save_state` returns on each rank when the files of that rank are written.
        wait_for_all()
        committed = once_for_all(lambda: self._commit(directory, wanted, metrics or {}))
        self.last = committed if isinstance(committed, CheckpointInfo) else self.last
        return result

    def load_state(self, input_dir: str | None = None, *arguments: Any, **options: Any) -> None:
        """Load like `Accelerator.load_state`, or load ``ckstore:REF`` from the store."""
        if input_dir is None or not str(input_dir).startswith(_PREFIX):
            self._load(input_dir, *arguments, **options)
            if input_dir is not None:
                once_for_all(lambda: self._continue(Path(input_dir)))
            return
        ref = str(input_dir).removeprefix(_PREFIX)

        def act() -> tuple[str, int, tuple[str, ...]]:
            base = self._accelerator.project_dir or os.getcwd()
            info, path = checkout_to_resume(self._store, self._run, ref, base)
            sentences = inexact(self._store, info, self._conditions(), self._reading)
            return str(path), info.step, (*sentences, *self._lost_order())

        path, step, sentences = once_for_all(act)
        optimizers = self._accelerator._optimizers  # noqa: SLF001 - the prepared optimizers
        given = settings_of(optimizers)
        self._load(path, *arguments, **options)
        has_scheduler = bool(self._accelerator._schedulers)  # noqa: SLF001
        replaced = overwritten(given, settings_of(optimizers), has_scheduler=has_scheduler)
        self.resumed_inexactly = (*sentences, *replaced)
        for sentence in self.resumed_inexactly if is_first() else ():
            warnings.warn(f"resuming from {ref}: {sentence}", CkstoreWarning, stacklevel=2)
        self._begun = True
        if self._names_itself:
            # Otherwise accelerate counts from 0 again, and the next save uses an existing step of the run.
            self._accelerator.project_configuration.iteration = step + 1

    def _begin(self) -> None:
        if not self._begun:
            own_run.begin(self._store, self._run)
            own_run.check_free(self._store, self._run)
            self._begun = True

    def _continue(self, directory: Path) -> None:
        own_run.continue_directory(self._store, self._run, directory, _step_of(directory))
        self._begun = True

    @property
    def _names_itself(self) -> bool:
        return bool(self._accelerator.project_configuration.automatic_checkpoint_naming)

    def _directory(self, output_dir: str | None) -> Path:
        if self._names_itself:
            return (
                Path(self._accelerator.project_dir) / "checkpoints" / f"checkpoint_{self._accelerator.save_iteration}"
            )
        if output_dir is None:
            raise BadInput("save_state: no directory is given", hint="or set automatic_checkpoint_naming")
        return Path(output_dir)

    def _make_way(self, directory: Path, step: int) -> None:
        """Remove or move the existing directory of a step, because accelerate refuses to write to it."""
        if not directory.exists():
            return
        if is_there(self._store, self._run, step):
            remove(directory)
            return
        # Move the directory instead of deleting it, because it is not in the store and may be the only copy.
        aside = Path(tempfile.mkdtemp(prefix=".ckstore-replaced-", dir=self._accelerator.project_dir)) / directory.name
        directory.rename(aside)
        warnings.warn(f"{directory} is not in the store, and was moved to {aside}", CkstoreWarning, stacklevel=2)

    def _commit(self, directory: Path, step: int | None, metrics: Mapping[str, float]) -> CheckpointInfo | NotSaved:
        about = with_random_states(self._conditions(), os.listdir(directory))
        info = commit_directory(self._store, directory, step, self._run, metrics=metrics, conditions=about)
        # If the commit failed, keep all directories, because this one and maybe earlier ones are not in the store.
        if info and self._names_itself and self._keep_count is not None:
            folders = (path for path in directory.parent.glob("checkpoint_*") if path.is_dir())
            directories = {number: path for path in folders if (number := _step_of(path)) is not None}
            keep_newest(directories, self._keep_count, {directory})
        return info

    def _conditions(self) -> Conditions:
        loaders = self._accelerator._dataloaders  # noqa: SLF001 - the prepared loaders
        return Conditions(
            world_size=self._accelerator.num_processes,
            dataloader=description(loaders[0]) if loaders else {},
            batches_read=batches_of_prepared(loaders[0]) if loaders else 0,
            samples_per_batch=getattr(loaders[0], "total_batch_size", 0) if loaders else 0,
            dataloader_resumes=bool(self._accelerator.use_stateful_dataloader)
            or not any(map(is_inside_epoch, loaders)),
            options={
                "mixed_precision": str(self._accelerator.mixed_precision),
                "gradient_accumulation_steps": self._accelerator.gradient_accumulation_steps,
            },
        )

    def _reading(self, before: Conditions, now: Conditions, _step: int) -> Iterator[str]:
        """Yield a sentence if samples of an unfinished epoch will be read twice or never."""
        length = now.dataloader.get("dataset_length") or sys.maxsize
        read = min(before.batches_read * before.samples_per_batch, length)
        if self._accelerator.use_stateful_dataloader and before.dataloader_resumes:
            # Each process continues after the same number of batches, but a batch may now have fewer or more samples.
            yield from position_change(read, min(before.batches_read * now.samples_per_batch, length), "the epoch")
        else:
            unless = "unless the script skips their batches with accelerator.skip_first_batches"
            yield from (f"{sentence}, {unless}" for sentence in position_change(read, 0, "the epoch"))

    def _lost_order(self) -> tuple[str, ...]:
        """Return a sentence if the order of a loader is drawn from a generator that accelerate does not save."""
        # With several ranks, accelerate adds such a generator to a loader that shuffles.
        loaders = () if self._accelerator.use_stateful_dataloader else self._accelerator._dataloaders  # noqa: SLF001
        if all(getattr(loader, "synchronized_generator", None) is None for loader in loaders):
            return ()
        cause = "the data loader draws its order from a generator that accelerate does not save"
        return (f"{cause}; use DataLoaderConfiguration(use_seedable_sampler=True) and loader.set_epoch(epoch)",)


def _step_of(directory: Path) -> int | None:
    match = _NUMBER.search(directory.name)
    return None if match is None else int(match[1])
