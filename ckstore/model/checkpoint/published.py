"""What a look at the directory of one checkpoint gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os

    from ckstore.model.manifest.manifest import Manifest


_MOST = 2**64


class Stamp(NamedTuple):
    """Which directory a checkpoint lies in, and which file its manifest is: another one, or one written to, differs.

    Inode numbers alone do not tell: a filesystem gives that of a removed directory to the next one. No user can
    set the time of change (`ctime`) of a file.

    Attributes:
        dir_inode: Inode number of the directory.
        inode: Inode number of its ``manifest.json``.
        mtime_ns, ctime_ns: Times of that file, modulo 2^64.
    """

    dir_inode: int
    inode: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, dir_inode: int, manifest: os.stat_result) -> Stamp:
        """Return the stamp of the directory with this inode number and the status of its manifest."""
        return cls(dir_inode, manifest.st_ino, manifest.st_mtime_ns % _MOST, manifest.st_ctime_ns % _MOST)


@dataclass(frozen=True, slots=True)
class Published:
    """A complete checkpoint, as its directory was when it was read.

    Attributes:
        manifest: What its ``manifest.json`` says; its run and step are the names of the directory.
        manifest_id: Digest of the manifest, the id of the checkpoint.
        stamp: Tells that the rows of the catalog are about this directory, without reading the manifest again.
    """

    manifest: Manifest
    manifest_id: str
    stamp: Stamp
