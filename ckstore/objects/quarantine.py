"""Put damaged blobs aside in ``quarantine/``, so that no save uses them and they can still be looked at.

Nothing there is ever used, and nothing but its owner removes it. Source: docs/format/v1.md, "quarantine".
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from ckstore.fs import files, links, peek

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.fs.inside import Inside
    from ckstore.objects.layout import Layout


def put_aside(layout: Layout, digest: str, names: Iterable[Inside]) -> list[Inside]:
    """Give each damaged copy of a blob a name in quarantine, and no canonical one; return the new names."""
    # Names in checkpoints stay until a good copy takes their place. After an error those before it are put aside.
    canonical = layout.blob(digest)
    made = []
    for name in names:
        try:
            status = peek.status(name)
        except FileNotFoundError:
            continue
        # With the inode in the name: two damaged copies of one blob are two files, and each is evidence.
        aside = layout.quarantine / f"{digest}.{status.st_ino}"
        # A directory can have no second name, so it is moved.
        if stat.S_ISDIR(status.st_mode):
            links.rename(name, aside)
        elif name == canonical:
            if peek.exists(aside):  # of the same inode: renaming one name over the other would do nothing
                links.unlink(aside)
            links.rename(canonical, aside)
        elif not peek.exists(aside) and not links.try_link(name, aside):
            continue
        made.append(aside)
    if made:
        # The new parent first (law N4): a power cut must not lose the only name of the evidence.
        files.sync_directory(layout.quarantine)
        if peek.is_directory(canonical.parent):
            files.sync_directory(canonical.parent)
    return made
