"""What each rank means to save, which it sends along with its plan; the coordinator compares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import RankMismatch
from ckstore.ranks.who import named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.ranks.who import Document

MEANT = ("run", "step", "store", "hash", "chunk_bytes")
"""Where a rank saves, and what: all ranks must say the same."""


def check_agreement(said: Iterable[Document]) -> None:
    """Raise if ranks do not mean the same checkpoint.

    Raises:
        RankMismatch: It names those that differ from most.
    """
    groups: dict[tuple[object, ...], list[Document]] = {}
    for document in said:
        groups.setdefault(tuple(document[name] for name in MEANT), []).append(document)
    if len(groups) <= 1:
        return
    most, *others = sorted(groups.values(), key=lambda group: (-len(group), group[0]["rank"]))
    differing = "; ".join(
        f"{named(one['rank'], one)} means {_differs(one, most[0])}" for group in others for one in group
    )
    wanted = ", ".join(str(one["rank"]) for one in most)
    msg = (
        f"the ranks do not mean the same checkpoint: {differing}; rank {wanted} means {_differs(most[0], others[0][0])}"
    )
    raise RankMismatch(f"{msg}; nothing was staged", hint="take run and step from one source, never from a clock")


def _differs(one: Document, other: Document) -> str:
    return ", ".join(f"{name} {one[name]!r}" for name in MEANT if one[name] != other[name])
