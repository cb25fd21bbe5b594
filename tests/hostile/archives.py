"""Every store of the suite, by name: hand-made ones, one attack each, and drawn ones, which join several."""

from __future__ import annotations

import random
import sqlite3

from tests.hostile import (
    archives_encoded,
    archives_index,
    archives_kinds,
    archives_links,
    archives_manifests,
    archives_names,
)
from tests.hostile.places import DOCUMENTS, spoil_document, spoil_names
from tests.hostile.scene import Builder, Scene

HAND_MADE: dict[str, Builder] = {
    **archives_links.CASES,
    **archives_kinds.CASES,
    **archives_index.CASES,
    **archives_names.CASES,
    **archives_manifests.CASES,
    **archives_encoded.CASES,
}
"""Name -> how the store is made."""

SHORT = (
    "untouched",
    "blobs is a symlink",
    "trash is a relative symlink",
    "a blob is a symlink to a file outside",
    "a canonical name is a hard link of a file outside",
    "reserve/space-0 is a pipe",
    "manifest.json is sparse and framed",
    "digests are absolute paths",
    "a journal with a super-journal outside",
    "a view that never ends: checkpoints",
    "1200 levels in staging",
    "names with newlines",
    "sequence 2^53",
    "one tensor of 2^61 elements, all in one place",
    "100 views that overlap",
    "runs that jump to and fro in a chain",
    "half a GiB of zeros in 20 KB",
)
"""Of these `make test` tries some, others for each commit."""


def drawn(seed: int) -> Builder:
    """Return a store with several attacks at once, or with spoiled documents and names, as drawn from `seed`."""

    def build(scene: Scene) -> None:
        draw = random.Random(seed)
        for _ in range(draw.choice((1, 2, 3))):
            how = draw.randrange(3)
            try:
                if how == 0:
                    spoil_document(scene.store, draw.choice(list(DOCUMENTS)), draw)
                elif how == 1:
                    spoil_names(scene.store, draw)
                else:
                    draw.choice(list(HAND_MADE.values()))(scene)
            except (OSError, ValueError, sqlite3.Error):  # taken away by an earlier attack, or no JSON or database now
                continue

    return build
