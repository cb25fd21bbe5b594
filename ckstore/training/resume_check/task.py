"""The task of a process of the check, and the files in which it reports its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ckstore.training.resume_check.factory import Factory

RESULT = "result.json"
DOING = "doing"


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one process.

    A process makes a record (`Observation`) before its first step, after each step, and at some other positions. Its
    recording is the list of these records. Indexes refer to the recording of the uninterrupted process.

    Attributes:
        factory: The function that makes the loop.
        arguments: The value of ``sys.argv`` in the process.
        seed: The seed that is set before the module is imported, and again before the loop is made.
        timeout_s: After this number of seconds, the process prints its stack and ends.
        folder: The folder for the result.
        steps: The minimum number of steps to train, unless `last` is given.
        epoch_steps: The number of steps after the first end of an epoch. If None, epochs are not considered.
        needs_epoch: Whether to train until an epoch ends.
        last: The index of the last record. If None, `steps` applies.
        saves: Index of a record, as text -> a store. Directly after this record, the process creates the store and
            saves the state to it.
        restores: The store to restore from before the first step, if `saved` is not None.
        saved: The record, as JSON, that the saving process made directly after it saved the state in `restores`. If
            None, nothing is restored.
        first: The index of the record after which the state in `restores` was saved. The first record of this process
            is made directly after the restore, and has the same index. 0 if nothing is restored.
        expected: The file with the result of the uninterrupted process. At the first difference from it, the process
            ends. If empty, nothing is compared.
        rtol: The relative tolerance.
        atol: The absolute tolerance.
        ignored: Patterns of names that may differ.
        tensors: A store with tensors of another process. The tensors of this process at its last record are compared
            with them. If empty, no tensors are compared.
        names: The names of the tensors to compare. If None, all tensors.
        keeps: The store to create for tensors of this process. It gets the tensors that differ from `expected`, or, if
            `expected` is empty, all tensors at the last record. If empty, no store is created.
    """

    factory: Factory
    arguments: tuple[str, ...]
    seed: int
    timeout_s: float
    folder: str = ""
    steps: int = 0
    epoch_steps: int | None = None
    needs_epoch: bool = False
    last: int | None = None
    saves: Mapping[str, str] = field(default_factory=dict)
    restores: str = ""
    saved: Mapping[str, Any] | None = None
    first: int = 0
    expected: str = ""
    rtol: float = 0.0
    atol: float = 0.0
    ignored: tuple[str, ...] = ()
    tensors: str = ""
    names: tuple[str, ...] | None = None
    keeps: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return this as a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Task:
        """Return the task that `to_json` encoded."""
        lists = {name: tuple(value[name]) for name in ("arguments", "ignored")}
        names = None if value["names"] is None else tuple(value["names"])
        return cls(**{**value, **lists, "names": names, "factory": Factory(**value["factory"])})
