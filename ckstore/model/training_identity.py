"""Which training a checkpoint belongs to: what a save continues, as a value. Rule: docs/format/v1.md, "Trainings"."""

from __future__ import annotations

import re
import secrets
from typing import Literal, NamedTuple

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest

IfRunInUse = Literal["error", "append"]
"""What a save does that begins a training in a run with checkpoints of another one."""
_NUMBERED = re.compile(r"(.*)-([0-9]{1,9})\Z")
_RUN_MOST_CHARS = 100


class Parent(NamedTuple):
    """What the next save of a run continues."""

    id: str  # of a checkpoint; empty: a training begins, or a load failed midway
    run: str = ""  # the run of that checkpoint, or the run in which a training begins
    training: str = ""  # what its manifest says; empty: it was saved by an older ckstore, or is not known
    sequence: int = 0  # of a checkpoint that this process saved
    origin: Literal["loaded", "saved", "begun", "lost"] = "loaded"
    step: int | None = None  # of a checkpoint that this process saved

    @classmethod
    def loaded(cls, manifest: Manifest, checkpoint_id: str) -> Parent:
        """Return that a checkpoint was loaded."""
        return cls(checkpoint_id, manifest.run, manifest.training)

    @classmethod
    def saved(cls, info: CheckpointInfo) -> Parent:
        """Return that a checkpoint was saved."""
        return cls(info.id, info.run, info.training, info.sequence, "saved", info.step)


LOST = Parent("", origin="lost")
"""A load failed when a part was in its target."""


def after_save(before: Parent | None, info: CheckpointInfo) -> Parent:
    """Return what is continued after a save that returned `info`; `before`: what was continued until then."""
    # An equal checkpoint of another training, or one that was kept, counted instead: this training is not that one.
    if before is not None and before.run == info.run and before.training != info.training:
        return before
    return Parent.saved(info)


def draw_training() -> str:
    """Return an id for a training that begins."""
    return secrets.token_hex(16)


def begins(parent: Parent | None, run: str) -> bool:
    """Whether a save into a run begins a training there: it continues no checkpoint of that run."""
    return parent is None or parent.run != run or not parent.id or parent.origin == "begun"


def next_name(wanted: str, names: set[str]) -> str:
    """Return a name made from the wanted one that is not among `names`: gpt, gpt-2, gpt-3 and so on."""
    if wanted not in names:
        return wanted
    numbered = _NUMBERED.match(wanted)
    base, number = (wanted, 2) if numbered is None else (numbered[1], int(numbered[2]) + 1)
    while True:
        name = f"{base[: _RUN_MOST_CHARS - 1 - len(str(number))]}-{number}"
        if name not in names:
            return name
        number += 1
