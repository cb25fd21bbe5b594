"""What the conversion of a store of a draft did."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class MigrateReport:
    """What `Store.migrate` did.

    Attributes:
        renamed_count: Checkpoints that have a new name.
        tag_count: Tags that were rewritten.
        left: What keeps its name, each with the reason.
    """

    renamed_count: int
    tag_count: int
    left: tuple[str, ...]

    def __str__(self) -> str:
        done = f"renamed {counted(self.renamed_count, 'checkpoint')}, rewrote {counted(self.tag_count, 'tag')}"
        return in_lines((f"left: {printable(text)}" for text in self.left), [done])
