"""One published version of the weights of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ckstore.model.brief import brief
from ckstore.model.digest import short_id
from ckstore.model.sizes import size_text
from ckstore.model.words import beyond_text, printable


@brief("version", "run", "step", "is_full")
@dataclass(frozen=True, slots=True)
class WeightVersion:
    """One version that `ckstore.Store.publish` wrote.

    Attributes:
        version: Its number, from 1.
        run, step, id: Run, step and id of the checkpoint whose weights it has.
        is_full: Whether it has all weights. Otherwise it has the differences from the previous version.
        reason: Why it has all weights, or empty.
        dtype: The dtype of its floating-point weights, as given to `ckstore.Store.publish`. None if they have that of
            the checkpoint.
        out_of_range: Number of values in its weights that this dtype cannot represent.
        nbytes: Size of its files.
        path: Its directory.
    """

    version: int
    run: str
    step: int
    id: str
    is_full: bool
    reason: str
    dtype: str | None
    out_of_range: int
    nbytes: int
    path: Path

    def __str__(self) -> str:
        form = "all weights" if self.is_full else "differences"
        form += f" in {self.dtype}" if self.dtype else ""
        form += f" ({self.reason})" if self.is_full else ""
        beyond = f", {beyond_text(self.out_of_range)}" if self.out_of_range else ""
        name = f"{self.run}@{self.step} {short_id(self.id)}"
        return printable(f"version {self.version}: {name}, {form}, {size_text(self.nbytes)}{beyond}")
