"""The record of a save by several ranks in a manifest. Source: docs/format/v1.md, "Ranks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ckstore.model.document import MAX_DEPTH, refuse, shown

WORLD_SIZE_MOST = 2**20
ATTEMPT_MOST_CHARS = 200


class DcpValue(NamedTuple):
    """A value in a state dict of `torch.distributed.checkpoint`, with its name in that dict and its path in the state.

    A number in the path is an index into a list. A string is a key, or the text of a key of another type.
    """

    name: str
    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The record of a save by several ranks.

    Attributes:
        world_size: Number of ranks.
        attempt: Name of the attempt, which differs between two attempts at the same step.
        hosts: The name of each rank's host.
        entries: The values that `torch.distributed.checkpoint` saved. None if each rank saved its own state or files.
    """

    world_size: int
    attempt: str
    hosts: tuple[str, ...]
    entries: tuple[DcpValue, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the member ``ranks`` of a manifest."""
        plain: dict[str, Any] = {"world_size": self.world_size, "attempt": self.attempt, "hosts": list(self.hosts)}
        if self.entries is not None:
            plain["entries"] = [[entry.name, list(entry.path)] for entry in self.entries]
        return plain


def read_ranks(item: Any, where: str) -> RankRecord:
    """Return the record of a save by several ranks."""
    if type(item) is not dict:
        refuse(where, "ranks", "an object", item)
    world_size = item.get("world_size")
    if type(world_size) is not int or not 1 <= world_size <= WORLD_SIZE_MOST:
        refuse(where, "ranks.world_size", f"an integer from 1 to {WORLD_SIZE_MOST}", world_size)
    attempt = item.get("attempt")
    if type(attempt) is not str or len(attempt) > ATTEMPT_MOST_CHARS:
        refuse(where, "ranks.attempt", f"a string of at most {ATTEMPT_MOST_CHARS} characters", attempt)
    hosts = item.get("hosts")
    if type(hosts) is not list or len(hosts) != world_size or any(type(host) is not str for host in hosts):
        refuse(where, "ranks.hosts", f"{world_size} strings", hosts)
    entries = item.get("entries")
    return RankRecord(world_size, attempt, tuple(hosts), None if entries is None else _entries(entries, where))


def _entries(items: Any, where: str) -> tuple[DcpValue, ...]:
    if type(items) is not list:
        refuse(where, "ranks.entries", "an array", items)
    entries = []
    seen: set[str] = set()
    for item in items:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not list:
            refuse(where, "an entry of ranks", "[name, path]", item)
        name, path = item
        if len(path) >= MAX_DEPTH or any(type(key) is not str and not (type(key) is int and key >= 0) for key in path):
            refuse(where, f"path of {shown(name)}", f"fewer than {MAX_DEPTH} strings and indexes", path)
        if name in seen:
            refuse(where, "ranks.entries", "each name once", name)
        seen.add(name)
        entries.append(DcpValue(name, tuple(path)))
    return tuple(entries)
