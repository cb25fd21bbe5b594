"""Count the samples that a resumed Trainer of transformers reads twice or never after ranks or batch sizes changed.

The Trainer computes the epoch and the number of batches to skip from the step and its current batch size. It therefore
continues after the same number of steps, which may correspond to a different number of samples. This module imports no
framework.
"""

from __future__ import annotations

from collections.abc import Iterator

from ckstore.training.conditions import Conditions
from ckstore.training.loader import position_change


def trainer_reading(before: Conditions, now: Conditions, step: int) -> Iterator[str]:
    """Yield a sentence if samples will be read twice or never after a resume at this step."""
    members = ("batch_size", "gradient_accumulation_steps", "dataset_length")
    known = all(name in conditions.dataloader for conditions in (before, now) for name in members)
    # If the lengths differ, the orders of the samples also differ, so positions cannot be compared.
    if known and before.dataloader["dataset_length"] == now.dataloader["dataset_length"]:
        begin = _position(now, step, skips=now.dataloader_resumes)
        yield from position_change(_position(before, step), begin, "the data")


def _position(conditions: Conditions, step: int, *, skips: bool = True) -> int:
    """Return the number of samples, over all epochs, before the next one to be read after a step.

    Samples of dropped batches count as read. Without `skips`, the epoch of the step begins again.
    """
    loader = conditions.dataloader
    batch_of_all = loader["batch_size"] * conditions.world_size
    batches_per_step, length = loader["gradient_accumulation_steps"], loader["dataset_length"]
    if length is None:  # a stream, which is one epoch
        return step * batches_per_step * batch_of_all if skips else 0
    batches = length // batch_of_all if loader.get("drop_last") else -(-length // batch_of_all)
    epoch, step_in_epoch = divmod(step, max(-(-batches // batches_per_step), 1))
    return int(epoch * length + (min(step_in_epoch * batches_per_step * batch_of_all, length) if skips else 0))
