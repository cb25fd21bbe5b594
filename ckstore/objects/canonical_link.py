"""Give a blob that lost its canonical name that name again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.errors import InUse
from ckstore.fs import links, locks, peek
from ckstore.objects import blobs
from ckstore.objects.layout import BLOBS, Layout

if TYPE_CHECKING:
    from ckstore.fs.inside import Inside


def restore_name(layout: Layout, checkpoint: Inside, digest: str, nbytes: int) -> bool:
    """Link the copy of a blob that a published checkpoint has to its canonical name; True if it has that name now.

    Only what is untouched by size and time. Without that name nothing is lost but a chance to deduplicate, so what
    cannot be linked is left to the next save of those bytes.

    Raises:
        OSError: The system refused.
    """
    canonical = layout.blob(digest)
    try:
        with locks.lock_shared(checkpoint):
            name = checkpoint / BLOBS / digest
            if not blobs.looks_untouched(peek.status(name), nbytes):
                return False
            links.make_directory(canonical.parent)
            links.link(name, canonical)
    except (FileNotFoundError, FileExistsError, InUse):  # dropped, or restored by another process
        return False
    except OSError as error:
        if error.errno not in links.CANNOT_LINK:
            raise
        return False
    return True
