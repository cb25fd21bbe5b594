"""Keep the times at which blobs were last verified in the file ``verified.json``. Source: docs/format/v1.md.

A verification with a budget reads the blobs with the oldest times first, so repeated verifications read all blobs. The
times are not in the catalog, so they are not lost with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ckstore.errors import BadInput, CkstoreError
from ckstore.fs import files
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import parse_object
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import Layout

CHECKED_VERSION = 1
CHECKED_MAX_BYTES = 2**30
_FORMAT = "ckstore-verified"

Copy = tuple[str, int]
"""The digest and the inode number. A blob that is written again is a new copy, which has not been read yet."""


@dataclass(slots=True)
class CheckedTimes:
    """The time at which a verification read each copy of a blob."""

    times: dict[Copy, int] = field(default_factory=dict)  # copy -> seconds since 1970

    def when(self, copy: Copy, now_s: float) -> int:
        """Return when a copy was last read, or 0 for never. A time in the future is wrong and counts as 0."""
        then_s = self.times.get(copy, 0)
        # Otherwise, a blob with a time in the future (from a wrong clock) would not be read until that time.
        return then_s if 0 < then_s <= now_s else 0

    def render(self) -> bytes:
        """Return the content of ``verified.json``."""
        blobs = [[digest, str(inode), then_s] for (digest, inode), then_s in sorted(self.times.items())]
        return canonical_json({"format": _FORMAT, "version": CHECKED_VERSION, "blobs": blobs}) + b"\n"


def parse_checked(data: bytes, where: str) -> CheckedTimes:
    """Return the content of ``verified.json``. Invalid entries are ignored: the times only set the order of reads."""
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
    # Inode numbers are stored as texts, because they have 64 bits, and many JSON readers keep only 53.
    if not isinstance(inode, str) or not (inode.isascii() and inode.isdigit() and len(inode) <= 20):
        return None
    return (digest, int(inode)), then_s


CHECKED = "verified.json"


def read_checked(layout: Layout) -> CheckedTimes:
    """Return the recorded times. If the file is unreadable, every blob counts as unread."""
    try:
        data = files.read_file(layout.root / CHECKED, most_bytes=CHECKED_MAX_BYTES)
    except (OSError, CkstoreError):
        return CheckedTimes()
    return parse_checked(data, CHECKED)


def remember_checked(layout: Layout, read: Mapping[Copy, int], keep: Callable[[Copy], bool]) -> bool:
    """Add the times of reads, and remove those that `keep` rejects. Return False if the file cannot be written."""
    # The times affect only the order of reads, so an error while writing them must not fail a verification.
    try:
        with atomic_file.changing(layout) as lock, files.opened_directory(layout.root) as fd:
            # Read the times under the lock, so that those of another verification are kept.
            known = read_checked(layout).times
            kept = {copy: then_s for copy, then_s in known.items() if keep(copy)}
            kept.update(read)
            data = CheckedTimes(kept).render()
            # Keep the old file if the new one would be too large for readers.
            if len(data) > CHECKED_MAX_BYTES:
                return False
            atomic_file.replace_file(layout, lock, fd, CHECKED, data)
    except (OSError, CkstoreError):
        return False
    return True
