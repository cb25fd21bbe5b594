"""Tags and the texts of their symlinks, without I/O. Source: docs/format/v1.md, "Tags"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ckstore.model.brief import brief
from ckstore.model.manifest.info import shown_name
from ckstore.model.names import CheckpointKey, is_run, key_of
from ckstore.model.words import printable

_TEXT = re.compile(r"\.\./checkpoints/([^/]+)/([^/]+)\Z")
_TEXT_TWICE = re.compile(r"\.\./checkpoints/([^/]+)/\.\./\1/([^/]+)/\.\./\2\Z")


class TagTarget(NamedTuple):
    """The checkpoint that the text of a tag names."""

    key: CheckpointKey
    twice: bool  # whether the text has each name twice to detect damage; an earlier ckstore wrote each name once


def tag_text(key: CheckpointKey) -> str:
    """Return the text of the symlink of a tag, the path to its checkpoint with each name twice."""
    return f"../checkpoints/{key.run}/../{key.run}/{key.directory}/../{key.directory}"


def parse_tag(text: str) -> TagTarget | None:
    """Parse the text of a symlink, or return None if it is not the text of a tag."""
    twice = _TEXT_TWICE.match(text)
    found = twice or _TEXT.match(text)
    if found is None or not is_run(found[1]) or (key := key_of(found[1], found[2])) is None:
        return None
    return TagTarget(key, twice is not None)


@brief()
@dataclass(frozen=True, slots=True)
class Tag:
    """A name for a checkpoint.

    Attributes:
        name: Name of the tag, which is also a ref.
        run, step: Run and step of the checkpoint that the tag names.
        id: Id of that checkpoint. None if the tag dangles, because the checkpoint was deleted or is incomplete.
        superseded: Whether the step has a newer checkpoint. If so, ``RUN@STEP`` names the newer checkpoint.
    """

    name: str
    run: str
    step: int
    id: str | None
    superseded: bool = False

    @property
    def dangling(self) -> bool:
        """Whether the tag does not point to a complete checkpoint."""
        return self.id is None

    @property
    def shown(self) -> str:
        """``RUN@STEP`` of the checkpoint, followed by the first digits of its id if it is superseded."""
        return shown_name(f"{self.run}@{self.step}", self.id or "", superseded=self.superseded)

    def __str__(self) -> str:
        return printable(f"{self.name} is {self.shown}{', which is missing' if self.dangling else ''}")
