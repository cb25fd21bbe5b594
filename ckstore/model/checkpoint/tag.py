"""A tag as users are told about it. What it is on disk: docs/format/v1.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a checkpoint.

    Attributes:
        name: Its name; a ref.
        run, step: The place that it points to.
        id: Id of the checkpoint that is there; None: there is no complete one, the tag dangles.
    """

    name: str
    run: str
    step: int
    id: str | None

    @property
    def dangling(self) -> bool:
        """Whether there is no complete checkpoint where it points to."""
        return self.id is None
