"""The report of the conversion of a store in a draft format."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class MigrateReport:
    """The result of `Store.migrate`.

    Attributes:
        renamed_count: Number of checkpoints that were renamed.
        tag_count: Number of tags that were rewritten.
        left: Entries that keep their name, each with the reason.
    """

    renamed_count: int
    tag_count: int
    left: tuple[str, ...]

    def __str__(self) -> str:
        done = f"renamed {counted(self.renamed_count, 'checkpoint')}, rewrote {counted(self.tag_count, 'tag')}"
        return in_lines((f"left: {printable(text)}" for text in self.left), [done])
