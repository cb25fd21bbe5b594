"""Explain why a rename or link between two directories of one filesystem failed with EXDEV, and how to fix it."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from ckstore.fs.dirfd_stat import AnyPath, open_directory
from ckstore.fs.host import mounts

_FS_IOC_FSGETXATTR = 0x801C581F  # linux/fs.h
_FSXATTR = struct.Struct("IIIII8x")
ONE_PROJECT = "give the whole store one project id; xfs_io -c lsproj DIRECTORY shows the id of a directory"
_OVERLAY = (
    "overlayfs cannot move a directory of a lower layer, such as that of a container image; "
    "copy the store to a volume, or mount the overlay with redirect_dir=on"
)


def cause_of(paths: Iterable[str | bytes]) -> str:
    """Return the reason why files cannot be moved or linked between these paths of a store, or "" if it is unknown."""
    folders = []
    for path in (Path(os.fsdecode(path)) for path in paths):
        if path.is_dir():
            folders.append(path)
        elif path.parent.is_dir():
            folders.append(path.parent)
    try:
        if said := said_of_projects(folders):
            return f"{said}; {ONE_PROJECT}"
        kinds = {mounts.examine(folder, layers=1).kind for folder in folders}
    except OSError:  # a directory was removed or cannot be read
        return ""
    return _OVERLAY if "overlay" in kinds else ""


def said_of_projects(folders: Iterable[AnyPath]) -> str:
    """Return a sentence about directories with different project ids, or "" if the ids are equal or one is unknown."""
    found = {project_of(folder): folder for folder in folders}
    if None in found or len(found) < 2:
        return ""
    named = " and ".join(f"{folder} has project id {number}" for number, folder in sorted(found.items(), key=str))
    return f"{named}, and the kernel cannot move or link files between projects"


def project_of(folder: AnyPath) -> int | None:
    """Return the project id of a directory, which XFS and ext4 use for quotas, or None if the filesystem has no ids."""
    fd = open_directory(folder)
    try:
        answer = fcntl.ioctl(fd, _FS_IOC_FSGETXATTR, bytes(_FSXATTR.size))
    except OSError:  # the filesystem has no project ids
        return None
    finally:
        os.close(fd)
    return int(_FSXATTR.unpack(answer)[3])
