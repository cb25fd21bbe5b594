"""The rules of a model, each of which can be left out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class Switches:
    """Which rules the modelled code keeps: a field for each, True unless it is left out."""

    def without(self, *names: str) -> Self:
        """Return the same rules but these."""
        return replace(self, **dict.fromkeys(names, False))
