"""When which blob was read: the content of ``verified.json``. Source: docs/format/v1.md."""

from __future__ import annotations

from dataclasses import dataclass, field

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import parse_object

CHECKED_VERSION = 1
CHECKED_MAX_BYTES = 2**30
_FORMAT = "ckstore-verified"

Copy = tuple[str, int]
"""Digest and inode number: a blob that was written again is another copy, which has not been read yet."""


@dataclass(slots=True)
class CheckedTimes:
    """For each copy of a blob, when a verification read it."""

    times: dict[Copy, int] = field(default_factory=dict)  # copy -> seconds since 1970

    def when(self, copy: Copy, now_s: float) -> int:
        """Return when a copy was read; 0: never. A time in the future is that of a wrong clock, and no time."""
        then_s = self.times.get(copy, 0)
        # Else a wrong clock would keep the blob from being read until that time.
        return then_s if 0 < then_s <= now_s else 0

    def render(self) -> bytes:
        """Return the content of ``verified.json``."""
        blobs = [[digest, str(inode), then_s] for (digest, inode), then_s in sorted(self.times.items())]
        return canonical_json({"format": _FORMAT, "version": CHECKED_VERSION, "blobs": blobs}) + b"\n"


def parse_checked(data: bytes, where: str) -> CheckedTimes:
    """Return what ``verified.json`` says. It only decides what is read first, so what is not understood is nothing."""
    try:
        members = parse_object(data, where=where)
    except BadInput:
        return CheckedTimes()
    listed = members.get("blobs")
    if members.get("format") != _FORMAT or members.get("version") != CHECKED_VERSION or not isinstance(listed, list):
        return CheckedTimes()
    return CheckedTimes(dict(entry for item in listed if (entry := _entry(item)) is not None))


def _entry(item: object) -> tuple[Copy, int] | None:
    if not isinstance(item, list) or len(item) != 3:
        return None
    digest, inode, then_s = item
    if not is_digest(digest) or not isinstance(then_s, int) or isinstance(then_s, bool):
        return None
    # As text: inode numbers have 64 bits, and JSON readers keep 53.
    if not isinstance(inode, str) or not (inode.isascii() and inode.isdigit() and len(inode) <= 20):
        return None
    return (digest, int(inode)), then_s
