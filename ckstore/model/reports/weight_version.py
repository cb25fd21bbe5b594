"""One published version of the weights of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ckstore.model.brief import brief
from ckstore.model.digest import short_id
from ckstore.model.sizes import size_text
from ckstore.model.words import printable


@brief("version", "run", "step", "is_full")
@dataclass(frozen=True, slots=True)
class WeightVersion:
    """One version that `ckstore.Store.publish` wrote.

    Attributes:
        version: Its number, from 1.
        run, step, id: Run, step and id of the checkpoint whose weights it has.
        is_full: Whether it has all weights. Otherwise it has the differences from the previous version.
        reason: Why it has all weights. Empty if it has differences.
        nbytes: Size of its files.
        path: Its directory.
    """

    version: int
    run: str
    step: int
    id: str
    is_full: bool
    reason: str
    nbytes: int
    path: Path

    def __str__(self) -> str:
        form = f"all weights ({self.reason})" if self.is_full else "differences"
        return printable(
            f"version {self.version}: {self.run}@{self.step} {short_id(self.id)}, {form}, {size_text(self.nbytes)}"
        )
