"""Runs of other programs, such as W&B, that the metadata of a checkpoint names.

The checkpoint was saved during these runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckstore.model.words import printable

EXTERNAL_RUNS = "tracked_by"
"""The key in the metadata, whose value is a list with an object for each run."""

_ID_CHARS = 8


@dataclass(frozen=True, slots=True)
class ExternalRun:
    """A run of another program.

    Attributes:
        kind: The program, such as ``wandb``.
        run: The id of the run.
        project: The project or the experiment of the run, or empty.
        name: The name of the run, or empty.
        url: The page of the run, or empty if the run has no page, for example because there is no server.
    """

    kind: str
    run: str
    project: str = ""
    name: str = ""
    url: str = ""

    @property
    def short(self) -> str:
        """The program and the first characters of the id of the run."""
        return printable(f"{self.kind}:{self.run[:_ID_CHARS]}")

    def __str__(self) -> str:
        about = ", ".join(part for part in (self.name, self.url) if part)
        run = f"{self.kind} {f'{self.project}/' if self.project else ''}{self.run}"
        return printable(f"{run}, {about}" if about else run)


def external_runs(metadata: Mapping[str, Any]) -> tuple[ExternalRun, ...]:
    """Return the runs that metadata names.

    Entries of another form are ignored, since users may also write this key.
    """
    found = metadata.get(EXTERNAL_RUNS)
    names = ExternalRun.__slots__
    return tuple(
        ExternalRun(**{name: one[name] for name in names if name in one})
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict) and "kind" in one and "run" in one
        if all(isinstance(one.get(name, ""), str) for name in names)
    )
