"""Judge what other hosts see of each other on a filesystem: who has locks, and who has files open.

Sources: nfs(5), flock(2), mount.lustre(8); the table in docs/how-to/shared.md says what was tried.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from ckstore.model.doctor.finding import DoctorFinding, ok

_KEPT_HERE_BY = {
    "nfs": ("nolock", "local_lock=all", "local_lock=flock"),
    "nfs4": ("local_lock=all", "local_lock=flock"),
    "lustre": ("localflock",),
    "gfs2": ("localflocks",),
    "ocfs2": ("localflocks",),
    "ceph": (),
}
"""Filesystems whose locks on files reach other hosts, and the options with which they do not."""
_SENT_BY = {"lustre": "flock"}
"""The option without which they do not."""
_ONE_HOST = "save to a run, and prune it, on one host"


class Reach(NamedTuple):
    """How far locks on files reach."""

    hosts: bool | None  # whether they reach other hosts; None: not known
    why: str = ""  # by which option of the mount, or for lack of which, they do not; empty else
    mended: str = ""  # how it is mounted so that they do


def reach_of_locks(kind: str, options: AbstractSet[str]) -> Reach:
    """Return how far locks on files reach, as the type and the options of the mount say."""
    if kind not in _KEPT_HERE_BY:
        return Reach(None)
    for option in _KEPT_HERE_BY[kind]:
        if option in options:
            return Reach(False, option, f"mount it without {option}")
    wanted = _SENT_BY.get(kind, "")
    if wanted and wanted not in options:
        return Reach(False, f"no {wanted}", f"mount it with {wanted}")
    return Reach(True)


def check_locks(kind: str, options: AbstractSet[str]) -> DoctorFinding:
    """Return what is to be said of locks on a shared filesystem."""
    hosts, why, mended = reach_of_locks(kind, options)
    if hosts:
        return ok("locks", "locks on files reach other hosts: one of two that change a run, or settings, waits")
    if hosts is None:
        told = f"whether locks on files reach other hosts is not known of {kind}"
        do = f"{_ONE_HOST}, unless its documentation says that flock(2) reaches other hosts"
    else:
        told = f"locks do not reach other hosts, as {kind} is mounted here ({why})"
        do = f"{_ONE_HOST}; or {mended}"
    return DoctorFinding("warning", "locks", f"{told}, so each run may be written by one host at a time", do)
