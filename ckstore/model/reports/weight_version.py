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
        version: Number of the version, from 1.
        run, step, id: Run, step and id of the checkpoint that has the weights.
        is_full: Whether the version contains all weights. Otherwise it contains the differences from the previous
            version.
        reason: Why the version contains all weights, or empty.
        dtype: The dtype of its floating-point weights, as given to `ckstore.Store.publish`. None if they keep the dtype
            of the checkpoint.
        out_of_range: Number of values in its weights that this dtype cannot represent.
        nbytes: Total size of its files.
        path: Directory of the version.
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
