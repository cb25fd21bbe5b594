"""The digest in a small JSON file, which covers the rest of the file.

Source: docs/format/v1.md, "Digests of small files".

The id of a checkpoint does not cover settings, pins and annotations. Without a digest, a flipped bit in such a file
would be read as another metric or another policy. A file without a digest is accepted, because an older ckstore or a
user may have written it.

Before a file is written, its new content is parsed like the content of an existing file, because an unreadable file
would lose all its entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

from ckstore.errors import BadInput, CkstoreError, DamagedBlob
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import ALGORITHMS
from ckstore.model.document import parse_object

MEMBER = "digest"
_ALGORITHM = ALGORITHMS["xxh3_128"]  # detects accidents only; any user with write access can also write a digest


class Document(Protocol):
    """The content of a small file."""

    def render(self) -> bytes:
        """Return the document as a JSON object."""


D = TypeVar("D", bound=Document)
T = TypeVar("T")


def to_write(document: D, parse: Callable[[bytes, str], D], *, most_bytes: int, where: str) -> bytes:
    """Return the bytes of a small file, including the digest, after checking that the file can be read back.

    Args:
        document: The content of the file.
        parse: The function that parses such a file.
        most_bytes: The maximum size that readers of such a file accept, in bytes.
        where: The name of the file, for messages.

    Raises:
        BadInput: The content is too large, or `parse` does not return it unchanged.
    """
    plain = document.render()
    data = seal(plain)
    # Readers refuse a larger file, so one annotation too many would make all annotations unreadable.
    if len(data) > most_bytes:
        msg = f"{where} would have {len(data)} bytes, more than the {most_bytes} that ckstore reads. It was not changed"
        raise BadInput(msg, hint="write less data into it")
    try:
        found = read(data, parse, where)
    except CkstoreError as error:
        msg = f"the new content could not be read back, so {where} was not changed: {error.message}"
        raise BadInput(msg, hint=error.hint) from error
    # The content must also be the same. If a value were read back differently, the next change of the file would lose
    # the original value.
    if found.render() != plain:
        raise BadInput(f"the new content would not be the same when read back, so {where} was not changed")
    return data


def read(data: bytes, parse: Callable[[bytes, str], T], where: str) -> T:
    """Return the content of a small file, after comparing it with the digest in the file, if there is one."""
    # Parse first, so that a newer version is not reported as damage.
    document = parse(data, where)
    check_seal(data, where)
    return document


def seal(data: bytes) -> bytes:
    """Return the JSON object in `data` with its digest, which replaces an existing digest."""
    members = json.loads(data)
    # The digest does not cover itself.
    members.pop(MEMBER, None)
    return canonical_json({**members, MEMBER: _ALGORITHM.digest(canonical_json(members))}) + b"\n"


def check_seal(data: bytes, where: str) -> bool:
    """Compare the content of a file with the digest in the file; return whether the file has a digest."""
    members = parse_object(data, where=where)
    wanted = members.pop(MEMBER, None)
    if wanted is None:
        return False
    found = _ALGORITHM.digest(canonical_json(members))
    if found != wanted:
        msg = f"{where} is damaged: its content has the digest {found}, wanted {str(wanted)[:80]}"
        raise DamagedBlob(msg, hint="if you changed it by hand, remove its member digest")
    return True
