"""The input of `check`: the parts of a training and the function that trains them."""

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
"""The value that a training loop yields between two epochs, where the training may be saved."""


@brief()
@dataclass
class Loop:
    """A training loop that `check` can run.

    Attributes:
        train: A generator function without arguments. After each step it yields the loss, or a dict of numbers with the
            key ``loss``. Between two epochs, where the training may be saved, it yields `EPOCH_END`. It may also be a
            function that runs one step and returns these values.
        parts: The parts for `capture` and `restore` by name, such as ``model``, ``optimizer``, ``scheduler``,
            ``scaler`` and ``dataloader``.
        extra: The `extra` values for `capture`. A resume writes the saved values into this dict.
        save: A function that saves the training to the store, instead of `capture` and `Store.save`.
        load: A function that restores the training from the store, instead of `restore`. It returns the report of
            `restore`, or None.

    Raises:
        BadInput: A value has the wrong type, or only one of `save` and `load` is given.
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
            raise BadInput("save and load go together, and only one was given", hint="give both or neither")
