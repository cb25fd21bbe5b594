"""DeepSpeed: a checkpoint engine that writes as DeepSpeed does, and commits when all ranks have written."""

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
from ckstore.training.processes import from_rank_zero, rank_and_world, wait_for_all

_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SCHEDULER = ("scheduler_name", "scheduler_params")


class CkstoreCheckpointEngine(TorchCheckpointEngine):  # type: ignore[misc]
    """Files lie where DeepSpeed expects them; the directory of a tag is committed before ``latest`` names it.

    The step is the number in the tag; a tag without one, such as ``best``, takes the next step, and is its message.

    Args:
        config: That of the engine.
        store: The store.
        run: Its run. If None, that of `Store.open`, otherwise ``main``. ``auto`` makes a new run for each training.

    Attributes:
        resumed_inexactly: What does not continue exactly since the last `load`, and hyper-parameters of the optimizer
            that it has replaced.
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
        """Load a file as DeepSpeed does, and remember the directory: what is saved next continues it."""
        self._read, self._begun = Path(path).parent, False
        return super().load(path, map_location=map_location)

    def continues(self) -> None:
        """Note that the store has loaded what is saved next."""
        self._begun = True

    def commit(self, info: Any) -> bool:
        """Commit the directory of a tag, from rank 0 when all ranks have written; if it fails, all ranks raise."""
        super().commit(info)
        # Each rank writes its own files: a commit before the last of them is a checkpoint that lacks a rank.
        wait_for_all()
        directory = Path(info.save_dir) / str(info.tag)
        step = step_in_name([directory])

        def act() -> None:
            self._begin()
            commit_directory(self.store, directory, step, self.run, metrics={}, conditions=self._conditions)

        from_rank_zero(act)
        return True

    def _begin(self) -> None:
        """Find which training this is, once after each load."""
        if self._begun:
            return
        if self._read is None:
            own_run.begin(self.store, self.run)
        else:
            own_run.continue_directory(self.store, self.run, self._read, step_in_name([self._read]))
        self._begun = True


def conditions(config: Any) -> Conditions:
    """Return what a run depends on besides its state, as the configuration of the engine says."""
    used = {name: value for name in _BATCHES if (value := getattr(config, name, None)) is not None}
    kinds = ("float16_config", "fp16"), ("bfloat16_config", "bf16")
    precision = next((kind for name, kind in kinds if getattr(getattr(config, name, None), "enabled", False)), "fp32")
    return Conditions(
        world_size=rank_and_world()[1],
        # DeepSpeed keeps no random states: a resume from its files cannot be exact.
        rng_ranks=(),
        dataloader=used,
        settings=_plain_members(config, "optimizer_name", "optimizer_params"),
        # Its schedulers load only their step number from a checkpoint, so these settings come from the program.
        options={"precision": precision, **_plain_members(config, "gradient_clipping", *_SCHEDULER)},
    )


def _plain_members(config: Any, *names: str) -> dict[str, Any]:
    """Return members of a configuration, as far as they are set; those that are no JSON as text."""
    found = {name: value for name in names if (value := getattr(config, name, None)) is not None}
    return {name: json.loads(json.dumps(value, default=str)) for name, value in found.items()}


def install(engine: Any, store: Store, run: str | None = None) -> CkstoreCheckpointEngine:
    """Have an engine of ``deepspeed.initialize`` keep its checkpoints in a store: one call, on every rank.

    Args:
        engine: The engine.
        store: The store.
        run: Its run. If None, that of `Store.open`, otherwise ``main``. ``auto`` makes a new run for each training.
    """
    made = CkstoreCheckpointEngine(getattr(engine, "_config", None), store, run)
    engine.checkpoint_engine = made
    return made


def load(engine: Any, store: Store, folder: str, ref: str = "latest-valid", run: str | None = None) -> Any:
    """Write a checkpoint of the store below `folder`, and have the engine load it; every rank calls it.

    Warns of what does not continue exactly: see `CkstoreCheckpointEngine.resumed_inexactly`.

    Raises:
        NoSuchRef: There is none.
        BadInput: DeepSpeed found nothing to load in it. It returns None then, and the run would begin at its start.
    """
    config = getattr(engine, "_config", None)

    def act() -> tuple[str, str, tuple[str, ...]]:
        info, path = checkout_to_resume(store, run, ref, folder)
        return str(path.parent), path.name, inexact(store, info, conditions(config))

    parent, tag, sentences = from_rank_zero(act)
    given = settings_of(getattr(engine, "optimizer", None))
    found = engine.load_checkpoint(parent, tag=tag)
    # DeepSpeed only logs a warning, and trains on from random weights.
    if found is None or found[0] is None:
        msg = f"DeepSpeed found nothing to load in {ref}"
        raise BadInput(msg, hint="ckstore ls REF lists its files")
    has_scheduler = getattr(engine, "lr_scheduler", None) is not None
    now = settings_of(getattr(engine, "optimizer", None))
    sentences = (*sentences, *overwritten(given, now, has_scheduler=has_scheduler))
    if sentences and rank_and_world()[0] == 0:
        warn(f"resuming from {ref}: {'; '.join(sentences)}")
    if isinstance(engine.checkpoint_engine, CkstoreCheckpointEngine):
        engine.checkpoint_engine.continues()
        engine.checkpoint_engine.resumed_inexactly = sentences
    return found
