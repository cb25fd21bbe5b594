"""Lightning: a callback that adds random states to checkpoints, because Lightning does not save them."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.trainer.states import TrainerFn

from ckstore.training.processes import gather, own
from ckstore.training.rng import random_states, set_random_states

KEY = "ckstore_resume"
"""The member of a checkpoint of Lightning that this callback writes."""


class ExactResume(Callback):
    """A callback, ``Trainer(callbacks=[…, ExactResume()])``, that makes a resume draw the same random numbers.

    The callback adds the random states of all ranks to each checkpoint of a training. These are the states of Python,
    NumPy, torch and the GPUs in use. A resume sets these states. `CkstoreCheckpointIO.resumed_inexactly` lists the
    aspects that do not continue exactly.
    """

    def __init__(self) -> None:
        self._saved: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the random states of all ranks. Every rank calls this."""
        states = gather(random_states())
        checkpoint[KEY] = {
            "random_states": {str(number): of_process for number, of_process in states.items()},
            "is_inside_epoch": not trainer.is_last_batch,
        }

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the random states of the checkpoint from which a training resumes, until the training begins."""
        # `Trainer.validate`, `test` and `predict` also call this, but resume no training.
        self._saved = checkpoint.get(KEY) if trainer.state.fn == TrainerFn.FITTING else None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the random states, before the data loader draws the order of an epoch from them."""
        self._set_random_states()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the random states again if the data loader drew numbers to continue inside an epoch."""
        if self._saved is not None and self._saved["is_inside_epoch"]:
            self._set_random_states()
        self._saved = None

    def _set_random_states(self) -> None:
        states = None if self._saved is None else own(self._saved["random_states"])
        if states is not None:
            set_random_states(states)
