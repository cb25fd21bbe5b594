"""Store the checkpoints of the `Trainer` of transformers, and of trainers based on it (TRL, PEFT).

The Trainer writes its files as usual, and ckstore then commits them. Equal tensors are stored once, and the policy of
the store decides which checkpoints are kept. `CkstoreTrainerMixin` also commits the save on SIGTERM and resumes from
the store. The mixin can also save the state directly, without files, optionally in the background. `CkstoreCallback`
takes only one line to add.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback

from ckstore.errors import BadInput, CkstoreWarning, NoSuchRef
from ckstore.integrations import own_run, trainer_state
from ckstore.integrations.directories import (
    CONDITIONS,
    checkout_to_resume,
    commit_directory,
    inexact,
    keep_newest,
    last_save_s,
    ref_of,
    remove,
    with_random_states,
)
from ckstore.integrations.trainer_position import trainer_reading
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.not_saved import NotSaved
from ckstore.ops.notices import warn
from ckstore.ops.save.options import SaveOptions
from ckstore.ops.save.tolerance import tell_failures
from ckstore.saver.client.pending import PendingSave
from ckstore.store import RefLike, Store, context_of
from ckstore.training.conditions import Conditions
from ckstore.training.history import numbers_at, run_of
from ckstore.training.loader import length_of
from ckstore.training.processes import is_first, once_for_all, wait_for_all

Saves = Literal["files", "state", "background"]
"""The ways in which `CkstoreTrainerMixin` saves."""
_INCOMPLETE = "checkpoint-is-incomplete.txt"
_FIRST_START = (
    'at the first start of a run, resume_from_checkpoint="auto" begins a training, '
    "and directory_to_resume(…, or_none=True) returns None"
)
_SETTINGS = (
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "lr_scheduler_type",
    "warmup_steps",
    "optim",
)
"""Settings that a resume replaces with those of the optimizer and the schedule of the checkpoint."""
_OPTIONS = ("bf16", "fp16", "tf32", "num_train_epochs", "max_steps")
"""The precision, and the length of the schedule."""
_DIRECTORY = re.compile(r"checkpoint-(\d+)\Z")


class CkstoreTrainerMixin:
    """Keeps the checkpoints of a Trainer in a store. List it first: ``class T(CkstoreTrainerMixin, Trainer)``.

    ``train(resume_from_checkpoint=…)`` then accepts these values:

    - ``True`` resumes from the newest valid checkpoint of the store.
    - ``"auto"`` does the same, and begins a training if the run has no checkpoint.
    - ``"ckstore:REF"`` resumes from this checkpoint, which may be an older one.
    - A directory works as usual.

    Without a value, a new training begins, and `RunInUse` is raised if the run has checkpoints of another training.

    With ``save_total_limit=N``, the N newest directories and the best one are kept. Other directories are deleted when
    the newest checkpoint is durable in the store.

    After a resume, `resumed_inexactly` lists the aspects that do not continue exactly.

    Attributes:
        ckstore: The store. Set it on the class or the object before training.
        ckstore_run: Name of the run. If None, the run given to `Store.open`, or ``main``. ``auto`` creates a new run
            for each training.
        ckstore_saves: With ``files``, the files of the Trainer are committed. With ``state``, weights and optimizer are
            saved directly, without files. ``background`` is like ``state``, but saves in a separate process while the
            training continues. ``state`` and ``background`` need the whole state on rank 0, so they exclude FSDP and
            DeepSpeed.
        ckstore_last: The last checkpoint that is known to be durable, on every rank.
    """

    ckstore: Store | None = None
    ckstore_run: str | None = None
    ckstore_saves: Saves = "files"
    ckstore_last: CheckpointInfo | None = None
    resumed_inexactly: tuple[str, ...] = ()
    _keep_count: int | None = None
    _pending: PendingSave | None = None
    _saved: dict[int, str] | None = None
    _not_saved: set[int | None] | None = None  # steps whose failed saves were tolerated

    # Attributes of the Trainer that this class uses.
    args: Any
    state: Any
    control: Any

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> Any:
        """Train like `transformers.Trainer.train`. See the class for `resume_from_checkpoint`."""
        store = self._store()
        self._settle()  # wait for a background save of an earlier, failed training
        if self._natively:
            trainer_state.check_suits(self)
        self._keep_count = taken_over_limit(self.args, self._keep_count)
        path = resume_from_checkpoint
        if path is True or path == "auto" or (isinstance(path, str) and path.startswith("ckstore:")):
            ref = "latest-valid" if path is True or path == "auto" else str(path).removeprefix("ckstore:")
            found = directory_to_resume(
                store, self.args.output_dir, ref, self.ckstore_run, or_none=path == "auto", now=self._conditions()
            )
            path, self.resumed_inexactly = found
        once_for_all(lambda: self._begin(path, resume_from_checkpoint))
        at_begin = _OnTrainBegin(self._restore_best)
        self.add_callback(at_begin)  # type: ignore[attr-defined]
        try:
            result = super().train(path, *arguments, **options)  # type: ignore[misc]
        finally:
            self.remove_callback(at_begin)  # type: ignore[attr-defined]
        self._settle()
        tell_failures(context_of(store).totals)
        return result

    def _begin(self, path: str | bool | None, asked: str | bool | None) -> None:
        """Begin or continue a training before its first step, so that a run in use is refused now, not hours later."""
        store = self._store()
        if not path:
            own_run.begin(store, self.ckstore_run)
        elif path == asked:  # a directory of the caller
            match = _DIRECTORY.search(str(path).rstrip("/"))
            step = None if match is None else int(match[1])
            own_run.continue_directory(store, self.ckstore_run, str(path), step)
        own_run.check_free(store, self.ckstore_run)

    def _restore_best(self) -> None:
        """Restore the best checkpoint of the Trainer, which a resume forgets if its directory does not exist."""
        best = best_so_far(self._store(), self.ckstore_run, self.args, self.state)
        if isinstance(best, str):
            self.resumed_inexactly = (*self.resumed_inexactly, best)
            self.state.best_model_checkpoint = None  # transformers 4 would load it at the end of the training
        elif best is not None:
            # `_load_best_model` writes this directory at the end of the training.
            self.state.best_model_checkpoint = str(_directory_of(self.args, best))
            self._saved = {**(self._saved or {}), best.step: best.id}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model like `transformers.Trainer.save_model`. For a checkpoint of a state, omit the weights."""
        if not (self._natively and _internal_call and output_dir is not None):
            super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        elif self.args.should_save:
            os.makedirs(output_dir, exist_ok=True)
            trainer_state.write_small_files(self, output_dir)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._natively:
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
        elif self.args.should_save:
            trainer_state.write_scheduler(self, output_dir)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))  # type: ignore[attr-defined]
        directory = folder / f"checkpoint-{self.state.global_step}"
        if self._natively:  # remove leftovers of a killed save
            once_for_all(lambda: remove(directory))
        super()._save_checkpoint(model, trial)  # type: ignore[misc]
        if self._natively:
            self._save_state(directory)
            return
        is_last = self.control.should_training_stop
        self._remember(
            committed(
                self._store(),
                self.ckstore_run,
                folder,
                self.state,
                self._conditions(),
                self._keep_count,
                is_last=is_last,
            )
        )

    @property
    def _natively(self) -> bool:
        return self.ckstore_saves != "files"

    def _save_state(self, directory: Path) -> None:
        """Save the state from rank 0, with the small files that all ranks have written into `directory`."""
        # Each rank writes a file with its random states. Rank 0 must not read the directory before all of them exist.
        wait_for_all()
        # Wait for the previous save, so that its error is raised before the state is copied again.
        self._settle()

        def act() -> CheckpointInfo | NotSaved | None:
            about = with_random_states(self._conditions(), os.listdir(directory))
            # All ranks have finished. The file that marks an unfinished directory must not become a part of the state.
            (directory / _INCOMPLETE).unlink(missing_ok=True)
            state = trainer_state.state_of(self, directory)
            store, step = self._store(), self.state.global_step
            options: SaveOptions = {"metrics": metrics_of(self.state), "metadata": {CONDITIONS: about.to_json()}}
            options["if_exists"], options["if_run_in_use"] = "replace", "error"
            if self.control.should_training_stop:
                options["try_for_s"] = last_save_s(store)
            run = run_of(store, self.ckstore_run)
            info = None
            on_failure = context_of(store).on_failed_save
            if self.ckstore_saves == "background":
                self._pending = store.save_async(state, step, run, on_failure=on_failure, **options)
            else:
                info = store.save(state, step, run, on_failure=on_failure, **options)
            # The state contains all files of the directory. If the directory remained, the Trainer would use it as a
            # complete checkpoint.
            shutil.rmtree(directory)
            return info

        self._remember(once_for_all(act))

    def _settle(self) -> None:
        """Wait for the background save."""
        if self.ckstore_saves != "background":
            return

        def act() -> CheckpointInfo | NotSaved | None:
            # Clear `_pending` first, so that an error is raised once and not at each later save.
            pending, self._pending = self._pending, None
            return None if pending is None else pending.ended()

        self._remember(once_for_all(act))

    def _remember(self, saved: CheckpointInfo | NotSaved | None) -> None:
        if isinstance(saved, NotSaved):
            self._not_saved = {*(self._not_saved or ()), saved.step}
        elif saved is not None:
            self.ckstore_last = saved
            self._saved = {**(self._saved or {}), saved.step: saved.id}
            self._not_saved = {*(self._not_saved or ())} - {saved.step}

    def _load_best_model(self) -> None:
        self._settle()
        best = self.state.best_model_checkpoint
        match = _DIRECTORY.search(best or "")
        # With files, the best directory exists even if its commit failed. A state whose save failed is lost.
        if self._natively and match and int(match[1]) in (self._not_saved or ()):
            warn(f"the training ends with the last model: the save of the best one, of step {match[1]}, failed")
            return
        if match:
            store, step = self._store(), int(match[1])
            # If this object saved the best checkpoint, use its id, because another training may have saved the step
            # again.
            ref = (self._saved or {}).get(step) or ref_of(store, self.ckstore_run, step)

            # Only rank 0 checks for the directory, because other ranks could see it partially written.
            once_for_all(lambda: _ensure_directory(store, ref, Path(best)))
        super()._load_best_model()  # type: ignore[misc]

    def _store(self) -> Store:
        if self.ckstore is None:
            msg = f"{type(self).__name__}.ckstore is not set"
            raise BadInput(msg, hint="trainer.ckstore = Store.open_or_init(path)")
        return self.ckstore

    def _conditions(self) -> Conditions:
        return conditions(self.args, getattr(self, "train_dataset", None))


class CkstoreCallback(TrainerCallback):
    """Commits each checkpoint that a Trainer writes: ``Trainer(…, callbacks=[CkstoreCallback(store)])``.

    Unlike `CkstoreTrainerMixin`, it does not commit the save on SIGTERM (``enable_jit_checkpoint``). To resume, or to
    begin if there is no checkpoint, call ``trainer.train(directory_to_resume(store, output_dir, or_none=True)[0])``.

    Args:
        store: The store.
        run: Name of the run. If None, the run given to `Store.open`, or ``main``. ``auto`` creates a new run for each
            training.
    """

    def __init__(self, store: Store, run: str | None = None) -> None:
        self.store = store
        self.run = run
        self.last: CheckpointInfo | None = None
        self._keep_count: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Unset ``save_total_limit``, so that nothing is deleted before a commit, and check out the best checkpoint."""
        self._keep_count = taken_over_limit(args, self._keep_count)
        once_for_all(lambda: self._begin(args, state))
        best = best_so_far(self.store, self.run, args, state)
        if isinstance(best, CheckpointInfo):
            directory = _directory_of(args, best)
            once_for_all(lambda: _ensure_directory(self.store, best, directory))
            state.best_model_checkpoint = str(directory)
        elif best is not None:
            state.best_model_checkpoint = None  # as in `CkstoreTrainerMixin._restore_best`

    def _begin(self, args: Any, state: Any) -> None:
        if not state.global_step:
            own_run.begin(self.store, self.run)
        elif not own_run.is_loaded(self.store, self.run):
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            own_run.continue_directory(self.store, self.run, folder, state.global_step)
        own_run.check_free(self.store, self.run)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit the directory that the Trainer wrote."""
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        saved = committed(
            self.store,
            self.run,
            Path(args.output_dir),
            state,
            conditions(args, dataset),
            self._keep_count,
            is_last=control.should_training_stop,
        )
        self.last = saved if isinstance(saved, CheckpointInfo) else self.last

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the failed saves, if there are any."""
        tell_failures(context_of(self.store).totals)


class _OnTrainBegin(TrainerCallback):
    """Calls a function when the training begins, after a resume has loaded the state of the Trainer."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._act()


def best_so_far(store: Store, run: str | None, args: Any, state: Any) -> CheckpointInfo | str | None:
    """Return the checkpoint of the best model before a resume, or None if the Trainer needs none or has its directory.

    If the run lacks that checkpoint, return a sentence that states this, and issue it as a warning on rank 0.
    """
    name = str(args.metric_for_best_model).removeprefix("eval_")
    name = f"eval_{name}"

    def act() -> CheckpointInfo | str | None:
        step, path = state.best_global_step, state.best_model_checkpoint
        if not args.load_best_model_at_end or step is None or (path is not None and os.path.isdir(path)):
            return None
        own = run_of(store, run)
        # The metric must also match, because another training may have saved the step again.
        found = [
            info
            for info in store.checkpoints(own, superseded=True)
            if info.step == step and info.metrics.get(name) == state.best_metric
        ]
        if found:
            return found[-1]
        sentence = (
            f"the best model so far, of step {step} with {name} {state.best_metric}, is not in the run {own}; "
            "unless a better one follows, the training ends with the last model"
        )
        warnings.warn(sentence, CkstoreWarning, stacklevel=2)
        return sentence

    return once_for_all(act)


def _directory_of(args: Any, info: CheckpointInfo) -> Path:
    return Path(args.output_dir) / f"checkpoint-{info.step}"


def _ensure_directory(store: Store, ref: RefLike, directory: Path) -> None:
    """Write the directory of a checkpoint unless it exists."""
    if not directory.is_dir():
        trainer_state.write_directory(store, store.info(ref), directory)


def taken_over_limit(args: Any, before: int | None) -> int | None:
    """Return ``save_total_limit`` and unset it, because the Trainer deletes before ckstore has committed."""
    limit: int | None = args.save_total_limit
    args.save_total_limit = None
    return before if limit is None or limit <= 0 else limit


def committed(
    store: Store,
    run: str | None,
    folder: Path,
    state: Any,
    about: Conditions,
    keep_count: int | None,
    *,
    is_last: bool = False,
) -> CheckpointInfo | NotSaved:
    """Commit the directory of the current step from rank 0 after all ranks have written to it."""
    wait_for_all()
    directory = folder / f"checkpoint-{state.global_step}"

    def act() -> CheckpointInfo | NotSaved:
        (directory / _INCOMPLETE).unlink(missing_ok=True)  # all ranks have finished, so it is complete
        conditions = with_random_states(about, os.listdir(directory))
        info = commit_directory(
            store,
            directory,
            state.global_step,
            run,
            metrics=metrics_of(state),
            conditions=conditions,
            is_last=is_last,
        )
        # If the commit failed, keep all directories, because this one and maybe earlier ones are not in the store.
        if info and keep_count is not None:
            # The Trainer loads the best directory at the end of the training, so it must not be deleted.
            best = state.best_model_checkpoint
            directories = {
                int(match[1]): path
                for path in folder.iterdir()
                if (match := _DIRECTORY.match(path.name)) and path.is_dir()
            }
            keep_newest(directories, keep_count, {directory, *([Path(best)] if best else [])})
        return info

    return once_for_all(act)


def metrics_of(state: Any) -> dict[str, float]:
    """Return the numbers that were logged at the saved step, such as the loss and the metrics of an evaluation."""
    return numbers_at(state.log_history, state.global_step)


def conditions(args: Any, dataset: Any) -> Conditions:
    """Return the conditions of the run."""
    loader = {
        "batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "drop_last": bool(args.dataloader_drop_last),
        "seed": args.seed if args.data_seed is None else args.data_seed,
        **({} if dataset is None else {"dataset": type(dataset).__name__, "dataset_length": length_of(dataset)}),
    }
    settings, options = (
        {name: _plain(getattr(args, name)) for name in names if hasattr(args, name)} for names in (_SETTINGS, _OPTIONS)
    )
    return Conditions(
        world_size=args.world_size,
        dataloader=loader,
        dataloader_resumes=not args.ignore_data_skip,
        settings=settings,
        options=options,
    )


def _plain(value: Any) -> str | float | None:
    value = getattr(value, "value", value)  # the value of an enumeration member, which may print as its name
    return value if isinstance(value, str | float | int | None) else str(value)


def directory_to_resume(
    store: Store,
    output_dir: str | os.PathLike[str],
    ref: str = "latest-valid",
    run: str | None = None,
    *,
    or_none: bool = False,
    now: Conditions | None = None,
) -> tuple[str | None, tuple[str, ...]]:
    """Write a checkpoint of the store to a directory below `output_dir` for the Trainer to resume from.

    Rank 0 writes the directory for all ranks. With several hosts, `output_dir` must be shared, as the Trainer expects.

    Args:
        store: The store.
        output_dir: The output directory of the Trainer.
        ref: The checkpoint to resume from.
        run: Name of the run. If None, the run given to `Store.open`, or ``main``.
        or_none: If the run has no checkpoint, as at its first start, return None as the directory instead of raising an
            error.
        now: The conditions of this run, which are compared with those of the checkpoint.

    Returns:
        The directory, or None, and one sentence for each aspect that will not continue exactly.

    Raises:
        NoSuchRef: The checkpoint does not exist.
    """

    def act() -> tuple[str | None, tuple[str, ...]]:
        try:
            info, path = checkout_to_resume(store, run, ref, output_dir, trainer_state.write_directory)
        except NoSuchRef as error:
            if store.checkpoints(run_of(store, run)):
                raise
            if or_none:
                return None, ()
            raise NoSuchRef(error.message, hint=_FIRST_START) from error
        sentences = () if now is None else inexact(store, info, now, trainer_reading)
        return str(path), sentences

    directory, sentences = once_for_all(act)
    for sentence in sentences if is_first() else ():
        warnings.warn(f"resuming from {ref}: {sentence}", CkstoreWarning, stacklevel=2)
    return directory, sentences
