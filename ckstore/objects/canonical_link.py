"""Give blobs that lost their canonical names those names again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import InUse
from ckstore.fs import links, locks, peek
from ckstore.fs.held import Held
from ckstore.model.digest import fan_out
from ckstore.objects import blobs
from ckstore.objects.layout import BLOBS, Layout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.fs.inside import Inside


def restore_names(layout: Layout, checkpoint: Inside, wanted: Iterable[tuple[str, int | None]]) -> set[str]:
    """Link the copies of blobs that a published checkpoint has to their canonical names; return those that have it now.

    Only what is untouched by size and time. Without that name nothing is lost but a chance to deduplicate, so what
    cannot be linked is left to the next save of those bytes.
    """
    given: set[str] = set()
    try:
        # Locked for use, so that gc does not take the checkpoint apart while its copies are linked.
        with locks.lock_shared(checkpoint), Held(checkpoint / BLOBS) as copies, Held(layout.blobs) as canonical:
            for digest, nbytes in wanted:
                if _link(copies.inside / digest, canonical.inside / fan_out(digest), nbytes):
                    given.add(digest)
    except (FileNotFoundError, InUse):  # dropped
        return given
    return given


def _link(copy: Inside, folder: Inside, nbytes: int | None) -> bool:
    try:
        status = peek.status(copy)
        if not blobs.looks_untouched(status, status.st_size if nbytes is None else nbytes):
            return False
        links.make_directory(folder)
        # link never replaces: a canonical name that another save made meanwhile stays.
        return links.try_link(copy, folder / copy.name)
    except (FileNotFoundError, FileExistsError):  # taken away, or restored by another process
        return False
