"""What a service was seen to do; nothing is believed from its documentation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ckstore.model.brief import brief
from ckstore.model.document import refuse

Cas = Literal["no", "yes", "unquoted"]
"""Whether an object can be changed in one version alone; ``unquoted``: its mark is sent without quotes."""

_CAS: tuple[Cas, ...] = ("no", "yes", "unquoted")


@brief()
@dataclass(frozen=True, slots=True)
class Abilities:
    """What a probe saw.

    Attributes:
        writes: An object was written and removed again. If not, the other answers are unknown, and False.
        create: A second create of a key was refused, and the first object stayed.
        cas: An update under a wrong version was refused, and one under the right version was made: ``yes``, or
            ``unquoted`` where the mark of the version has to be sent without its quotes. Else ``no``.
        ranges: A range of an object can be read; if not, whole objects are read.
        lists_writes: A listing showed an object just after it was written, and not just after it was removed.
        checks_bodies: A body that differs from its signed digest was refused; None: that could not be tried.
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
        """Return what was seen, and what follows from it, a sentence each."""
        if not self.writes:
            return ["cannot be written with these credentials: it can be pulled from"]
        bodies = {
            True: "refuses a body that was changed on the way",
            False: "takes a body that was changed on the way: pushed bytes count as safe only after they are read back",
            None: "whether it refuses a body that was changed on the way was not tried",
        }
        return [
            "refuses to create an object twice" if self.create else "creates an object over another one",
            "changes an object only in the version that it was read in: prune may run beside pushes"
            if self.cas != "no"
            else "changes an object in any version: prune needs --exclusive",
            "reads ranges of objects" if self.ranges else "does not read ranges of objects: whole objects are read",
            "lists each write at once" if self.lists_writes else "lists writes late: it cannot be pushed to",
            bodies[self.checks_bodies],
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what ``config.json`` keeps of it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Abilities:
        """Return what ``config.json`` says; `where` is for messages."""
        if not isinstance(value, dict):
            refuse(where, "abilities", "an object", value)
        members: dict[str, Any] = {name: value.get(name) for name in cls.__slots__}
        found = cls(**members)
        flags = (found.writes, found.create, found.ranges, found.lists_writes)
        if not all(isinstance(flag, bool) for flag in flags) or found.cas not in _CAS:
            refuse(where, "abilities", "what a probe saw", value)
        if found.checks_bodies not in (True, False, None):
            refuse(where, "abilities", "what a probe saw", value)
        return found
