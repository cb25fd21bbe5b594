"""The training of a checkpoint, and the parent of a save. Source: docs/format/v1.md, "Trainings"."""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Literal, NamedTuple

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest

IfRunInUse = Literal["error", "append"]
"""Whether a save may start a training in a run that has checkpoints of another training."""
_NUMBERED = re.compile(r"(.*)-([0-9]{1,9})\Z")
_RUN_MOST_CHARS = 100


class Parent(NamedTuple):
    """The parent of the next save of a run."""

    id: str  # id of a checkpoint; empty if a training starts, or if a load failed midway
    run: str = ""  # the run of that checkpoint, or the run in which a training starts
    training: str = ""  # id of the training; empty if unknown, or if an older ckstore saved the checkpoint
    sequence: int = 0  # sequence number of a checkpoint that this process saved
    origin: Literal["loaded", "saved", "begun", "lost"] = "loaded"
    step: int | None = None  # step of a checkpoint that this process saved
    # The number that `next_load` returned for the latest load, failed load or new training of the run; 0 before the
    # first of them. A save does not change the number. Two equal numbers therefore show that there was no load between
    # two saves, even if another process compares them.
    load: int = 0

    @classmethod
    def loaded(cls, manifest: Manifest, checkpoint_id: str) -> Parent:
        """Return the parent after loading a checkpoint."""
        return cls(checkpoint_id, manifest.run, manifest.training)

    @classmethod
    def saved(cls, info: CheckpointInfo, before: Parent | None) -> Parent:
        """Return the parent after saving a checkpoint; `before` is the previous parent of its run."""
        load = 0 if before is None else before.load
        return cls(info.id, info.run, info.training, info.sequence, "saved", info.step, load)


LOST = Parent("", origin="lost")
"""The parent after a load that failed after it had written a part of its target."""

next_load = itertools.count(1).__next__
"""Return the next number for `Parent.load`."""


def after_save(before: Parent | None, info: CheckpointInfo) -> Parent:
    """Return the parent after a save that returned `info`; `before` is the previous parent.

    If the save returned an equal or kept checkpoint of another training, this training does not continue that
    checkpoint.
    """
    if before is not None and before.run == info.run and before.training != info.training:
        return before
    return Parent.saved(info, before)


def draw_training() -> str:
    """Return an id for a new training."""
    return secrets.token_hex(16)


def begins(parent: Parent | None, run: str) -> bool:
    """Return whether a save starts a training in a run, because its parent is not a checkpoint of that run."""
    return parent is None or parent.run != run or not parent.id or parent.origin == "begun"


def next_name(wanted: str, names: set[str]) -> str:
    """Return `wanted`, or, if `names` has it, the next numbered name that is free, such as gpt-2 for gpt."""
    if wanted not in names:
        return wanted
    numbered = _NUMBERED.match(wanted)
    base, number = (wanted, 2) if numbered is None else (numbered[1], int(numbered[2]) + 1)
    while True:
        name = f"{base[: _RUN_MOST_CHARS - 1 - len(str(number))]}-{number}"
        if name not in names:
            return name
        number += 1
