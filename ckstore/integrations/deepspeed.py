"""DeepSpeed: a checkpoint engine that writes the usual files and commits them after all ranks have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from ckstore.errors import BadInput
from ckstore.integrations import own_run
from ckstore.integrations.directories import checkout_to_resume, commit_directory, inexact
from ckstore.ops.notices import warn
from ckstore.ops.save.gather import step_in_name
from ckstore.store import Store
from ckstore.training.conditions import Conditions
from ckstore.training.hyperparameters import overwritten, settings_of
from ckstore.training.processes import is_first, once_for_all, wait_for_all, world_size

_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SCHEDULER = ("scheduler_name", "scheduler_params")


class CkstoreCheckpointEngine(TorchCheckpointEngine):  # type: ignore[misc]
    """A checkpoint engine that writes the usual files and commits the directory of a DeepSpeed tag to a store.

    The commit precedes DeepSpeed's update of its file ``latest``. The step is the number in the tag. If the tag has no
    number, as in ``best``, the directory is committed at the next step of the run, with the tag as the message.

    Args:
        config: The configuration of the engine.
        store: The store.
        run: Name of the run. If None, the run given to `Store.open`, or ``main``. ``auto`` creates a new run for each
            training.

    Attributes:
        resumed_inexactly: One sentence for each aspect that did not continue exactly at the last `load`, and for each
            hyper-parameter of the optimizer that this load replaced.
    """

    def __init__(self, config: Any, store: Store, run: str | None = None) -> None:
        super().__init__(config)
        self.resumed_inexactly: tuple[str, ...] = ()
        self._conditions = conditions(config)
        self.store = store
        self.run = run
        self._read: Path | None = None
        self._begun = False

    def load(self, path: str, map_location: Any = None) -> Any:
        """Load a file as DeepSpeed does, and record its directory as the parent of the next save."""
        self._read, self._begun = Path(path).parent, False
        return super().load(path, map_location=map_location)

    def continues(self) -> None:
        """Record that the training continues the checkpoint that was loaded from the store."""
        self._begun = True

    def commit(self, info: Any) -> bool:
        """Commit the directory of a tag from rank 0 after all ranks have written. Errors are raised on all ranks."""
        super().commit(info)
        # Each rank writes its own files. Without this barrier, the commit could lack the files of a slower rank.
        wait_for_all()
        directory = Path(info.save_dir) / str(info.tag)
        step = step_in_name([directory])

        def act() -> None:
            self._begin()
            commit_directory(self.store, directory, step, self.run, metrics={}, conditions=self._conditions)

        once_for_all(act)
        return True

    def _begin(self) -> None:
        """Begin a training, or continue the loaded checkpoint, once after each load."""
        if self._begun:
            return
        if self._read is None:
            own_run.begin(self.store, self.run)
        else:
            own_run.continue_directory(self.store, self.run, self._read, step_in_name([self._read]))
        self._begun = True


def conditions(config: Any) -> Conditions:
    """Return the conditions of a run, as far as the configuration of the engine has them."""
    used = {name: value for name in _BATCHES if (value := getattr(config, name, None)) is not None}
    kinds = ("float16_config", "fp16"), ("bfloat16_config", "bf16")
    precision = next((kind for name, kind in kinds if getattr(getattr(config, name, None), "enabled", False)), "fp32")
    # DeepSpeed saves no random states, so a resume from its files cannot be exact.
    return Conditions(
        world_size=world_size(),
        dataloader=used,
        settings=_plain_members(config, "optimizer_name", "optimizer_params"),
        # The settings of a scheduler are options, because a resume does not change them. Schedulers of DeepSpeed load
        # only their step number.
        options={"precision": precision, **_plain_members(config, "gradient_clipping", *_SCHEDULER)},
    )


def _plain_members(config: Any, *names: str) -> dict[str, Any]:
    """Return the members of a configuration that are set. Members that JSON cannot represent are converted to text."""
    found = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    return {name: json.loads(json.dumps(value, default=str)) for name, value in found.items()}


def install(engine: Any, store: Store, run: str | None = None) -> CkstoreCheckpointEngine:
    """Make an engine of ``deepspeed.initialize`` keep its checkpoints in a store. Call this once on every rank.

    Args:
        engine: The engine.
        store: The store.
        run: Name of the run. If None, the run given to `Store.open`, or ``main``. ``auto`` creates a new run for each
            training.
    """
    made = CkstoreCheckpointEngine(getattr(engine, "_config", None), store, run)
    engine.checkpoint_engine = made
    return made


def load(engine: Any, store: Store, folder: str, ref: str = "latest-valid", run: str | None = None) -> Any:
    """Write a checkpoint of the store below `folder` and load it into the engine. Every rank must call this.

    A warning lists the aspects that do not continue exactly. See `CkstoreCheckpointEngine.resumed_inexactly`.

    Raises:
        NoSuchRef: The store has no such checkpoint.
        BadInput: DeepSpeed found nothing to load in the directory.
    """
    config = getattr(engine, "_config", None)

    def act() -> tuple[str, str, tuple[str, ...]]:
        info, path = checkout_to_resume(store, run, ref, folder)
        return str(path.parent), path.name, inexact(store, info, conditions(config))

    parent, tag, sentences = once_for_all(act)
    given = settings_of(getattr(engine, "optimizer", None))
    found = engine.load_checkpoint(parent, tag=tag)
    # DeepSpeed itself only logs a warning, and the training would start from random weights.
    if found is None or found[0] is None:
        msg = f"DeepSpeed found nothing to load in {ref}"
        raise BadInput(msg, hint="ckstore ls REF lists its files")
    has_scheduler = getattr(engine, "lr_scheduler", None) is not None
    now = settings_of(getattr(engine, "optimizer", None))
    sentences = (*sentences, *overwritten(given, now, has_scheduler=has_scheduler))
    if sentences and is_first():
        warn(f"resuming from {ref}: {'; '.join(sentences)}")
    if isinstance(engine.checkpoint_engine, CkstoreCheckpointEngine):
        engine.checkpoint_engine.continues()
        engine.checkpoint_engine.resumed_inexactly = sentences
    return found
