"""What a look at the directory of one checkpoint gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckstore.model.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Published:
    """A complete checkpoint, as its directory was when somebody looked.

    Attributes:
        manifest: What its ``manifest.json`` says; its run and step are the names of the directory.
        manifest_id: Digest of the manifest, the id of the checkpoint.
        dir_inode: Inode number of its directory. It tells that the rows of the catalog are about
            this directory, without reading the manifest again.
    """

    manifest: Manifest
    manifest_id: str
    dir_inode: int
