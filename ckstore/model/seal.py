"""The digest that a small JSON file carries of itself. Source: docs/format/v1.md, "Digests of small files".

Settings, pins and annotations are not covered by the id of a checkpoint, so a flipped bit in one would read as another
metric or another policy. Without the member a file is taken as it is: of an older ckstore, or written by hand.

What is written is read first, by the reader and within its limits: a file that cannot be read again would take all that
was in it along.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol, TypeVar

from ckstore.errors import BadInput, CkstoreError, DamagedBlob
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import ALGORITHMS
from ckstore.model.document import parse_object

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBER = "digest"
_ALGORITHM = ALGORITHMS["xxh3_128"]  # it finds accidents; a user who may write to the store can write a digest, too


class Document(Protocol):
    """The content of a small file."""

    def render(self) -> bytes:
        """Return it as a JSON object."""


D = TypeVar("D", bound=Document)
T = TypeVar("T")


def to_write(document: D, parse: Callable[[bytes, str], D], *, most_bytes: int, where: str) -> bytes:
    """Return the bytes of a small file with the digest of themselves, after its reader has read them."""
    # `most_bytes`: what its reader takes at most.
    plain = document.render()
    data = seal(plain)
    # Readers refuse it then: a pin or an annotation too many would make all of them unreadable.
    if len(data) > most_bytes:
        msg = f"{where} would have {len(data)} bytes, more than the {most_bytes} that ckstore reads; it was not changed"
        raise BadInput(msg, hint="write less into it")
    try:
        found = read(data, parse, where)
    except CkstoreError as error:
        msg = f"this could not be read back, so {where} was not changed: {error.message}"
        raise BadInput(msg, hint=error.hint) from error
    # Not only readable but the same: a value that comes back changed would be lost at the next change of the file.
    if found.render() != plain:
        raise BadInput(f"this would not read back the same, so {where} was not changed")
    return data


def read(data: bytes, parse: Callable[[bytes, str], T], where: str) -> T:
    """Return what a small file says, after comparing it with the digest that it carries, if it carries one."""
    # Parsed first: a newer version says so, instead of being called damaged.
    document = parse(data, where)
    check_seal(data, where)
    return document


def seal(data: bytes) -> bytes:
    """Return the JSON object in `data` with the digest of itself; one that it has is replaced."""
    members = json.loads(data)
    # The digest is not of itself; an old one is replaced.
    members.pop(MEMBER, None)
    return canonical_json({**members, MEMBER: _ALGORITHM.digest(canonical_json(members))}) + b"\n"


def check_seal(data: bytes, where: str) -> bool:
    """Compare a file with the digest that it carries; False if it carries none."""
    members = parse_object(data, where=where)
    wanted = members.pop(MEMBER, None)
    if wanted is None:
        return False
    found = _ALGORITHM.digest(canonical_json(members))
    if found != wanted:
        msg = f"{where} is damaged: its content has the digest {found}, wanted {str(wanted)[:80]}"
        raise DamagedBlob(msg, hint="if you changed it by hand, remove its member digest")
    return True
