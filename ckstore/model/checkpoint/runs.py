"""What the checkpoints of a store say of its runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.words import counted, printable


@brief()
@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run of a store.

    Attributes:
        name: Its name.
        checkpoint_count: How many complete checkpoints it has.
        newest: The one that was committed last.
        highest_step: The highest step of them; that of `newest` is lower after a run went back.
    """

    name: str
    checkpoint_count: int
    newest: CheckpointInfo
    highest_step: int

    def __str__(self) -> str:
        """``gpt: 12 checkpoints, the newest gpt@1200``."""
        return printable(f"{self.name}: {counted(self.checkpoint_count, 'checkpoint')}, the newest {self.newest.name}")


def summaries(infos: Iterable[CheckpointInfo]) -> list[RunSummary]:
    """Return the runs of checkpoints, which are given in the order of their commits, in the order of the newest."""
    by_run: dict[str, list[CheckpointInfo]] = {}
    for info in infos:
        by_run.setdefault(info.run, []).append(info)
    found = [RunSummary(run, len(own), own[-1], max(info.step for info in own)) for run, own in by_run.items()]
    return sorted(found, key=lambda summary: summary.newest.order)
