"""Tags: relative symlinks in ``refs/``."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from ckstore.fs import files, links

if TYPE_CHECKING:
    from ckstore.objects.layout import Layout


def write_tag(layout: Layout, tag: str, run: str, step: int) -> None:
    """Point `tag` to a checkpoint, durably; an older meaning is replaced in one step.

    The caller holds the checkpoint's directory locked for use, so that nobody drops it meanwhile.

    Raises:
        OSError: The tag has its old meaning or, after a power cut, perhaps its old one.
    """
    fresh = layout.refs / f".{tag}.{uuid.uuid4().hex[:12]}"
    links.symlink(f"../checkpoints/{run}/{step}", fresh)
    links.rename(fresh, layout.refs / tag)
    files.sync_directory(layout.refs)
