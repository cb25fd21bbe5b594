"""Every store of the suite, by name: hand-made ones, one attack each, and drawn ones, which join several."""

from __future__ import annotations

import random

from tests.hostile import archives_index, archives_kinds, archives_links, archives_manifests, archives_names
from tests.hostile.places import DOCUMENTS, spoil_document, spoil_names
from tests.hostile.scene import Builder, Scene

HAND_MADE: dict[str, Builder] = {
    **archives_links.CASES,
    **archives_kinds.CASES,
    **archives_index.CASES,
    **archives_names.CASES,
    **archives_manifests.CASES,
}
"""Name -> how the store is made."""

SHORT = (
    "untouched",
    "checkpoints/main/2/blobs is a symlink",
    "manifest.json is a pipe",
    "config.json is a socket",
    "a blob is a symlink to a file outside",
    "names with newlines",
    "names that are no UTF-8",
    "one tensor of 2^61 elements, all in one place",
    "containers nested 100 deep",
)
"""What `make test` tries."""


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
            except (OSError, ValueError):  # what an earlier attack has taken away, or made no JSON
                continue

    return build
