"""Facts about the hosts that use a store: how far file locks reach, unwritten data, and directories that are purged.

The sources on locks are nfs(5), flock(2) and mount.lustre(8).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

_KEPT_HERE_BY = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "nfs4": ("local_lock=all", "local_lock=flock"),
    "lustre": ("localflock",),
    "gfs2": ("localflocks",),
    "ocfs2": ("localflocks",),
    "ceph": (),
}
"""Filesystems whose file locks reach other hosts, and the mount options that prevent it."""
_SENT_BY = {"lustre": "flock"}
"""Filesystems whose file locks reach other hosts only with a mount option, and this option."""
_OFTEN_PURGED = ("scratch", "lscratch", "pscratch", "ptmp", "nobackup")
"""Names of directories that computing centres often purge by age."""


class Reach(NamedTuple):
    """Whether file locks reach other hosts, and why not."""

    hosts: bool | None  # whether locks reach other hosts; None if unknown
    why: str = ""  # the mount option whose presence or absence keeps locks local; empty otherwise
    mended: str = ""  # how to mount the filesystem so that locks reach other hosts


def reach_of_locks(kind: str, options: AbstractSet[str]) -> Reach:
    """Return whether file locks on a mount of this type with these options reach other hosts."""
    if kind not in _KEPT_HERE_BY:
        return Reach(None)
    for option in _KEPT_HERE_BY[kind]:
        if option in options:
            return Reach(False, option, f"mount it without {option}")
    wanted = _SENT_BY.get(kind, "")
    if wanted and wanted not in options:
        return Reach(False, f"no {wanted}", f"mount it with {wanted}")
    return Reach(True)


@dataclass(frozen=True, slots=True)
class DirtyFacts:
    """Data of all programs that the kernel has not written yet, and the limit above which writers must wait."""

    dirty_bytes: int  # not yet being written
    writeback_bytes: int  # being written
    limit_bytes: int  # 0 if unknown


def often_purged(path: str) -> str:
    """Return the name of a directory in a path that is often purged by age, or an empty string."""
    return next((name for name in _OFTEN_PURGED if f"/{name}/" in f"{path}/"), "")
