"""A remote on object storage, as transfers need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckstore.remote.objects import Objects


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote on object storage, as a transfer needs it.

    Attributes:
        name: What users call it.
        objects: Its objects.
        cas: Whether its compare-and-swap was seen to work.
        checks_bodies: Whether it was seen to refuse a body that was damaged on the way.
    """

    name: str
    objects: Objects
    cas: bool = True
    checks_bodies: bool = False
