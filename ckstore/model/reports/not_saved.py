"""What a save returns that failed without ending the training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.model.brief import brief
from ckstore.model.words import printable

if TYPE_CHECKING:
    from ckstore.errors import CkstoreError


@brief("run", "step", "error", "in_a_row")
@dataclass(frozen=True, slots=True)
class NotSaved:
    """A save that failed, with ``on_failure="warn"``: nothing was published, every earlier checkpoint is intact.

    It is false, and a `CheckpointInfo` is true: ``if info := store.save(state, on_failure="warn"): …``.

    Attributes:
        run, step: What was to be saved; the step is None if the store was to choose it.
        error: Why it failed.
        in_a_row: How many saves have failed since the last that worked, with this one.
    """

    run: str
    step: int | None
    error: CkstoreError
    in_a_row: int

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``, as far as it is known."""
        return f"{self.run}@{'next step' if self.step is None else self.step}"

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return printable(f"{self.name} was not saved: {self.error}")
