"""The file ``verified.json``: when which blob was read last, so that repeated budgets come round to all of them.

It lies in the store and not in the catalog: losing the catalog must not make every blob look unread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.fs import files
from ckstore.model.checkpoint.verify_times import CHECKED_MAX_BYTES, CheckedTimes, Copy, parse_checked
from ckstore.objects.documents import atomic_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.objects.layout import Layout

CHECKED = "verified.json"


def read_checked(layout: Layout) -> CheckedTimes:
    """Return what is remembered; nothing if it cannot be read: then everything counts as unread."""
    try:
        data = files.read_file(layout.root / CHECKED, most_bytes=CHECKED_MAX_BYTES)
    except (OSError, CkstoreError):
        return CheckedTimes()
    return parse_checked(data, CHECKED)


def remember_checked(layout: Layout, read: Mapping[Copy, int], keep: Callable[[Copy], bool]) -> bool:
    """Add when copies were read, and forget those that `keep` does not want; False if it was not possible."""
    # It is a hint about what to read first: that it cannot be written must not fail a verification.
    try:
        with atomic_file.changing(layout) as lock, files.opened_directory(layout.root) as fd:
            # Read under the lock: the notes of another verification are kept.
            known = read_checked(layout).times
            kept = {copy: then_s for copy, then_s in known.items() if keep(copy)}
            kept.update(read)
            data = CheckedTimes(kept).render()
            # A file that no reader takes would be worse than the old one.
            if len(data) > CHECKED_MAX_BYTES:
                return False
            atomic_file.replace_file(layout, lock, fd, CHECKED, data)
    except (OSError, CkstoreError):
        return False
    return True
