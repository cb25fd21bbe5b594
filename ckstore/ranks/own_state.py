"""Load the state of one rank from a checkpoint that ranks saved together, each with a state of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckstore.errors import BadInput, NoSuchRef
from ckstore.model.manifest.manifest import Manifest
from ckstore.ops.read.load import StatePart


@dataclass(frozen=True, slots=True)
class StateOfRank(StatePart):
    """The state of a rank, which the merged checkpoint contains under the number of the rank."""

    rank: int

    def names(self, manifest: Manifest, keep: Callable[[str], bool] | None) -> Callable[[str], bool]:
        """Return a filter for the state of the rank, or for the part of it that `keep` selects."""
        name = manifest.name
        if manifest.ranks is None or manifest.ranks.entries is not None or manifest.files:
            raise BadInput(f"{name} was not saved by ranks with a state each", hint="leave rank= out")
        # `isinstance` would accept True as rank 1.
        if type(self.rank) is not int or not 0 <= self.rank < manifest.ranks.world_size:
            raise NoSuchRef(f"{name} has ranks 0 to {manifest.ranks.world_size - 1}, but no rank {self.rank!r}")
        own = f"[{self.rank}]"

        def wanted(path: str) -> bool:
            if not path.startswith(own):
                return False
            return keep is None or keep(path.removeprefix(own).removeprefix("."))

        return wanted

    def of(self, state: object) -> object:
        """Return the state of the rank. It is empty if nothing was selected."""
        return state.get(self.rank, {}) if isinstance(state, dict) else {}
