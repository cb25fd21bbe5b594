"""What a process of the check is to do, and the files by which it says what came of it. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ckstore.training.resume_check.factory import Factory

RESULT = "result.json"
DOING = "doing"


@dataclass(frozen=True, slots=True)
class Task:
    """What one process does.

    A recording is a list of records. Indexes are those of the uninterrupted process, whose first record is made before
    the first step.

    Attributes:
        factory: The function that makes the loop.
        arguments: What it finds in ``sys.argv``.
        seed: Of the random generators, before the module is imported and before the loop is made.
        timeout_s: After this time the process prints where it is, and ends.
        folder: Where it writes its result.
        steps: The number of steps to train at least, if `last` is None.
        epoch_steps: The number of steps after the first end of an epoch, if there is one; None: do not look for it.
        needs_epoch: Whether to train until an epoch ends.
        last: The index of the last record; None: see `steps`.
        saves: Index, as text, of the record after which to save -> the store to make and save to.
        restores: The store to restore from before the first step, if `saved` is not None.
        saved: The record of what was saved there, as JSON.
        first: The index of the first record: that after which was saved.
        expected: The result of the uninterrupted process, so as to stop at the first difference; empty: do not compare.
        rtol: Of the tolerance.
        atol: Of the tolerance.
        ignored: Patterns of names that may differ.
        tensors: A store with tensors of another process, to compare with those of the last record; empty: none.
        names: The names of these tensors; None: all.
        keeps: The store to make for tensors: those that differ from `expected`, or without it those of the last record.
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
        """Return this as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Task:
        """Return what `to_json` gave, after JSON."""
        lists = {name: tuple(value[name]) for name in ("arguments", "ignored")}
        names = None if value["names"] is None else tuple(value["names"])
        return cls(**{**value, **lists, "names": names, "factory": Factory(**value["factory"])})
