"""The abilities of a service, according to a probe and not to its documentation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ckstore.model.brief import brief
from ckstore.model.document import refuse

Cas = Literal["no", "yes", "unquoted"]
"""Whether the service supports compare-and-swap. ``unquoted`` if it expects version tags without quotes."""

_CAS: tuple[Cas, ...] = ("no", "yes", "unquoted")


@brief()
@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a service, according to a probe.

    Attributes:
        writes: An object was written and deleted. If not, the other abilities are unknown, and count as missing.
        create: Creating a key twice was refused, and the first object remained.
        cas: ``yes`` if an update of a wrong version was refused, and an update of the right version succeeded.
            ``unquoted`` if that requires the version tag without its quotes. Otherwise ``no``.
        ranges: A range of an object can be read. If not, whole objects are read.
        lists_writes: A listing showed an object just after it was written, and omitted it just after it was deleted.
        checks_bodies: A body that differs from its signed digest was refused. None if this could not be tested.
    """

    writes: bool = True
    create: bool = True
    cas: Cas = "yes"
    ranges: bool = True
    lists_writes: bool = True
    checks_bodies: bool | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the results and their consequences, one sentence each."""
        if not self.writes:
            return ["cannot be written with these credentials: only pulls are possible"]
        bodies = {
            True: "rejects uploads that were corrupted in transit",
            False: "accepts uploads that were corrupted in transit: pushed data is trusted only after it is read back",
            None: "not tested whether it rejects uploads that were corrupted in transit",
        }
        return [
            "refuses to create an object twice"
            if self.create
            else "overwrites an object instead of refusing to create it twice",
            "supports compare-and-swap: prune may run at the same time as pushes"
            if self.cas != "no"
            else "does not support compare-and-swap: prune needs --exclusive",
            "reads ranges of objects" if self.ranges else "does not read ranges of objects: whole objects are read",
            "lists each write immediately" if self.lists_writes else "lists writes late: pushes are not possible",
            bodies[self.checks_bodies],
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the value that ``config.json`` stores."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Abilities:
        """Parse the value in ``config.json``; `where` names the file in errors."""
        if not isinstance(value, dict):
            refuse(where, "abilities", "an object", value)
        members: dict[str, Any] = {name: value.get(name) for name in cls.__slots__}
        found = cls(**members)
        flags = (found.writes, found.create, found.ranges, found.lists_writes)
        if not all(isinstance(flag, bool) for flag in flags) or found.cas not in _CAS:
            refuse(where, "abilities", "the results of a probe", value)
        if found.checks_bodies not in (True, False, None):
            refuse(where, "abilities", "the results of a probe", value)
        return found
