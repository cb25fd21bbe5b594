"""Find the Trainer of Lightning that saves or loads, read its settings, and determine whether a save is the last one.

Lightning passes no Trainer to a `CheckpointIO`. The Trainer is looked up in the call stack, because methods of the
Trainer call the `CheckpointIO`. The thread of `AsyncCheckpointIO` has no Trainer in its stack, so settings are not
compared in that case.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch.utils._pytree import tree_leaves

from ckstore.integrations.lightning_exact import KEY
from ckstore.tensors.kinds import is_stateful
from ckstore.training.conditions import Conditions
from ckstore.training.hyperparameters import Settings, overwritten, settings_of
from ckstore.training.loader import description, is_of_torchdata, losses
from ckstore.training.rng import random_states

_SEED = "PL_GLOBAL_SEED"
"""The environment variable that `lightning.seed_everything` sets."""
_OPTIONS = ("precision", "gradient_clip_val", "gradient_clip_algorithm")


def calling_trainer() -> Trainer | None:
    """Return the Trainer in the call stack, or None."""
    frame = inspect.currentframe()
    while frame is not None:
        # Read variables only in frames of the Trainer, because `f_locals` keeps the values alive until the frame ends.
        if frame.f_globals.get("__name__") == Trainer.__module__:
            found = frame.f_locals.get("self")
            if isinstance(found, Trainer):
                return found
        frame = frame.f_back
    return None


def is_last_save(trainer: Trainer | None) -> bool:
    """Whether the training ends after the current save, either regularly or because of an exception."""
    if trainer is None or trainer.state.fn != TrainerFn.FITTING:
        return False
    if trainer.state.status == TrainerStatus.INTERRUPTED or trainer.should_stop or trainer.received_sigterm:
        return True
    loop = trainer.fit_loop
    if 0 <= loop.max_steps <= trainer.global_step:
        return True
    # Lightning counts an epoch as processed only after the saves at its last batch and at its validation.
    current: Any = loop.epoch_progress.current
    epochs = current.processed + bool(loop.epoch_loop.batch_progress.is_last_batch)
    return loop.max_epochs is not None and 0 <= loop.max_epochs <= epochs


def conditions_of(trainer: Trainer, checkpoint: Mapping[str, Any] | None = None) -> Conditions:
    """Return the conditions of the run. `checkpoint` is the one that is being saved, or None at a resume."""
    loader: Any = next(iter(tree_leaves(trainer.train_dataloader)), None)  # the first of several
    about: dict[str, Any] = {"class": type(loader).__name__}
    if hasattr(loader, "dataset"):
        about = description(loader)
    about["accumulate_grad_batches"] = trainer.accumulate_grad_batches
    about["seed"] = os.environ.get(_SEED)
    options = {name: getattr(trainer, name) for name in _OPTIONS}
    options["number of schedulers"] = len(trainer.lr_scheduler_configs)
    states = {} if checkpoint is None else checkpoint.get(KEY, {}).get("random_states", {})
    kinds = random_states() if checkpoint is None else states.get("0", {})
    return Conditions(
        world_size=trainer.world_size,
        rng_kinds=tuple(kinds),
        dataloader=about,
        dataloader_resumes=is_stateful(loader) or trainer.is_last_batch,
        options=options,
        lost=() if checkpoint is None or not is_stateful(loader) else tuple(_losses(trainer, loader)),
    ).with_rng_of(map(int, states))


def _losses(trainer: Trainer, loader: Any) -> Iterator[str]:
    yield from losses(loader)
    # Lightning creates one iterator to detect that the saved epoch has ended, and another one for the next epoch. Both
    # draw random numbers.
    if trainer.is_last_batch and is_of_torchdata(loader):
        yield (
            "Lightning resumes a StatefulDataLoader with other random numbers if it was saved at the end of an epoch: "
            "save inside an epoch, or use a DataLoader"
        )


class SettingsComparison(Callback):
    """Compares the settings of a training with those of the resumed checkpoint, when the training starts.

    Args:
        inexact: Returns one sentence for each difference between the checkpoint and the given conditions.
        tell: Called with these sentences, and with sentences about settings of optimizers that the checkpoint replaced.
    """

    def __init__(self, inexact: Callable[[Conditions], Sequence[str]], tell: Callable[[tuple[str, ...]], None]) -> None:
        self._inexact = inexact
        self._tell = tell
        self._given: Settings | None = None
        self._is_over = False

    @classmethod
    def add_to(cls, trainer: Trainer, *arguments: Any) -> None:
        """Add the callback to a Trainer, and remove an earlier one."""
        others = [one for one in trainer.callbacks if not isinstance(one, cls)]  # type: ignore[attr-defined]
        trainer.callbacks[:] = [cls(*arguments), *others]  # type: ignore[attr-defined]

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Record the settings of the optimizers before the checkpoint replaces their state."""
        del pl_module
        self._given = settings_of(trainer.optimizers)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Compare the settings, and report the differences."""
        del pl_module
        # Do not compare again in the next fit of the same Trainer.
        if self._is_over:
            return
        self._is_over = True
        now = settings_of(trainer.optimizers)
        has_scheduler = bool(trainer.lr_scheduler_configs)
        replaced = overwritten(self._given or {}, now, has_scheduler=has_scheduler)
        self._tell((*self._inexact(conditions_of(trainer)), *replaced))
