"""Runs of experiment trackers, such as W&B, in the metadata of the checkpoints that were saved during these runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckstore.model.words import printable

TRACKED_BY = "tracked_by"
"""The key in the metadata. Its value is a list with an object for each run."""

_ID_CHARS = 8


@dataclass(frozen=True, slots=True)
class TrackerRun:
    """A run of an experiment tracker.

    Attributes:
        kind: ``wandb``, ``mlflow`` or ``trackio``.
        run: The id of the run.
        project: The project of the run, or the id of the experiment of MLflow.
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
        """The tracker and the first characters of the id of the run."""
        return printable(f"{self.kind}:{self.run[:_ID_CHARS]}")

    def __str__(self) -> str:
        about = ", ".join(part for part in (self.name, self.url) if part)
        run = f"{self.kind} {f'{self.project}/' if self.project else ''}{self.run}"
        return printable(f"{run}, {about}" if about else run)


def runs_in(metadata: Mapping[str, Any]) -> tuple[TrackerRun, ...]:
    """Return the runs that metadata names. Members of another form are ignored, since users write metadata."""
    found = metadata.get(TRACKED_BY)
    names = TrackerRun.__slots__
    return tuple(
        TrackerRun(**{name: one[name] for name in names if name in one})
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, dict) and "kind" in one and "run" in one
        if all(isinstance(one.get(name, ""), str) for name in names)
    )


def with_runs(metadata: Any, runs: Sequence[dict[str, str]]) -> Any:
    """Return the caller's metadata with `runs` under the key `TRACKED_BY`, unless it already has this key.

    Metadata that is not a mapping is returned unchanged.
    """
    if not runs or not isinstance(metadata, Mapping | None):
        return metadata
    return {TRACKED_BY: runs, **(metadata or {})}
