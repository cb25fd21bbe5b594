"""What each rank means to save, which it sends along with its plan; the coordinator compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.errors import RankMismatch

if TYPE_CHECKING:
    from ckstore.ranks.part import Who


@dataclass(frozen=True, slots=True)
class Meant:
    """What a rank means to save, and where; all ranks must mean the same."""

    run: str
    step: int
    store: str
    hash: str
    chunk_bytes: int
    who: Who

    def differs(self, other: Meant) -> str:
        """Return what differs from `other`, for a message; empty if nothing does."""
        names = ("run", "step", "store", "hash", "chunk_bytes")
        differing = [f"{name} {getattr(self, name)!r}" for name in names if getattr(self, name) != getattr(other, name)]
        return ", ".join(differing)


def check_agreement(meant: list[Meant]) -> None:
    """Raise if ranks do not mean the same checkpoint.

    Raises:
        RankMismatch: It names those that differ from most.
    """
    if not meant:
        return
    groups: dict[tuple[object, ...], list[Meant]] = {}
    for one in meant:
        groups.setdefault((one.run, one.step, one.store, one.hash, one.chunk_bytes), []).append(one)
    if len(groups) == 1:
        return
    most, *others = sorted(groups.values(), key=lambda group: (-len(group), group[0].who.rank))
    said = "; ".join(f"{one.who} means {one.differs(most[0])}" for group in others for one in group)
    wanted = ", ".join(str(one.who.rank) for one in most)
    msg = f"the ranks do not mean the same checkpoint: {said}; rank {wanted} means {most[0].differs(others[0][0])}"
    raise RankMismatch(f"{msg}; nothing was staged", hint="take run and step from one source, never from a clock")
