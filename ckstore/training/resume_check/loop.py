"""What `check` runs: the parts of a training, and what trains them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.brief import brief
from ckstore.store import Store
from ckstore.tensors.refusals import type_name
from ckstore.training.restore import ResumeReport

EPOCH_END = "end of an epoch"
"""What a training loop yields between two epochs, where it may be saved."""


@brief()
@dataclass
class Loop:
    """A training loop that `check` can run.

    Attributes:
        train: A generator function without arguments. After each step it yields the loss, or a dict of numbers with the
            key ``loss``; where it may be saved between two epochs it yields `EPOCH_END`. A function that does one step
            and returns the same will also do.
        parts: What `capture` and `restore` get, by name: ``model``, ``optimizer``, ``scheduler``, ``scaler``,
            ``dataloader`` and others.
        extra: What `capture` gets as `extra`. A resume puts the saved values into this same dict.
        save: Saves the training to the store, instead of `capture` and `Store.save`.
        load: Restores it from the store, instead of `restore`; returns the report of `restore`, or None.

    Raises:
        BadInput: A value is of another kind, or one of `save` and `load` is missing.
    """

    train: Callable[[], Any]
    parts: Mapping[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    save: Callable[[Store], object] | None = None
    load: Callable[[Store], ResumeReport | None] | None = None

    def __post_init__(self) -> None:
        train: object = self.train
        if not callable(train):
            hint = "give a generator function that yields the loss after each step"
            raise BadInput(f"train must be a function, got {type_name(type(train))}", hint=hint)
        parts: object = self.parts
        extra: object = self.extra
        if not (isinstance(parts, Mapping) and isinstance(extra, dict)):
            msg = f"parts and extra must be dicts, got {type_name(type(parts))} and {type_name(type(extra))}"
            hint = 'Loop(train, {"model": model, …})'
            raise BadInput(msg, hint=hint)
        if (self.save is None) != (self.load is None):
            raise BadInput("save and load go together, and only one was given", hint="give both, or none")
