"""The result of a failed save that does not end the training."""

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
    """A save that failed with ``on_failure="warn"``.

    The save published no checkpoint, and every earlier checkpoint is intact. This value is false, and a
    `CheckpointInfo` is true: ``if info := store.save(state, on_failure="warn"): …``.

    Attributes:
        run, step: Run and step of the failed save. A step of None means that the store would have chosen the step.
        error: The error of the save.
        in_a_row: Number of saves that failed since the last success, including this one.
    """

    run: str
    step: int | None
    error: CkstoreError
    in_a_row: int

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``, or ``RUN@next step`` if the step is unknown."""
        return f"{self.run}@{'next step' if self.step is None else self.step}"

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return printable(f"{self.name} was not saved: {self.error}")
