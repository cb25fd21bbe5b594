"""Judge the filesystem that a store lies on: what it is, how it is mounted, whether it keeps what it was told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckstore.model.doctor.finding import Finding, ok

MEMORY = frozenset({"tmpfs", "ramfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "beegfs", "gpfs", "afs", "coda"}
    | {"gfs2", "ocfs2", "orangefs", "pvfs2", "panfs", "wekafs", "vboxsf", "dvs"}
)
_FUSE = "fuse"
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs"})
TRIED = frozenset({"ext4", "xfs"})
_LOCAL = "put the store on ext4 or XFS on a disk of this machine: move it with cp -a, then ckstore reindex"


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """The filesystem of a directory.

    Attributes:
        path: The directory.
        kind: As in ``/proc/self/mountinfo``: ext4, xfs, tmpfs …; empty if it is not known.
        mount: Where it is mounted.
        source: What is mounted there: a device, usually.
        options: Of the mount and of the filesystem.
        journal: Whether an ext4 has a journal; None: not known, or it is no ext4.
    """

    path: str
    kind: str = ""
    mount: str = ""
    source: str = ""
    options: frozenset[str] = frozenset()
    journal: bool | None = None

    @property
    def shared(self) -> bool:
        """Whether other machines may have it mounted as well; of what is shown by a program (FUSE) nobody knows."""
        by_program = self.kind.partition(".")[0] == _FUSE and self.kind not in _LOCAL_FUSE
        return self.kind in NETWORK or by_program

    @property
    def durable(self) -> bool:
        """Whether it keeps what was made durable through a power cut, as far as can be seen."""
        return all(finding.level != "error" for finding in check_place(self))


def check_place(facts: PlaceFacts) -> Iterator[Finding]:
    """Yield what is to be said of the filesystem."""
    yield _filesystem(facts)
    yield _journal(facts)
    yield _options(facts)
    if facts.kind == "lustre":
        yield _striping(facts)


def _filesystem(facts: PlaceFacts) -> Finding:
    path, kind = facts.path, facts.kind
    if not kind:
        do = "see what df -T says of it; ext4 and XFS are what ckstore is tested on"
        return Finding(
            "note", "filesystem", f"the filesystem of {path} is not known: /proc/self/mountinfo lacks it", do
        )
    if kind in MEMORY:
        return Finding(
            "error",
            "filesystem",
            f"{path} is on {kind}, which is memory: nothing survives a restart of the machine",
            _LOCAL,
        )
    if facts.shared:
        return Finding(
            "warning",
            "filesystem",
            f"{path} is on {kind}, a shared filesystem: hosts do not see each other's locks and open files, so each "
            "run may be written by one host at a time, and nothing is freed but by ckstore gc --exclusive",
            "save to a run, and drop from it, on one host; run ckstore gc --exclusive when no other host has the store "
            "in use; or keep the store on a local disk",
        )
    if kind == "overlay":
        return Finding(
            "warning",
            "filesystem",
            f"{path} is on overlayfs: open files cannot always be seen; use a volume for the store",
            "in a container mount a volume or a directory of the host, and put the store there",
        )
    where = f"{kind} on {facts.source}, mounted at {facts.mount}"
    if kind in TRIED:
        return ok("filesystem", where)
    do = "it may well keep every promise, but power cuts are tested on ext4 and XFS only; prefer those"
    return Finding("note", "filesystem", where, do)


def _journal(facts: PlaceFacts) -> Finding:
    if facts.kind != "ext4":
        return ok("journal", "only ext4 can be without one")
    if facts.journal is None:
        do = "look yourself, as root: dumpe2fs -h DEVICE must list has_journal"
        return Finding("note", "journal", f"whether {facts.source} has a journal cannot be seen from here", do)
    if facts.journal:
        return ok("journal", f"{facts.source} has one")
    return Finding(
        "error",
        "journal",
        f"{facts.path} is on ext4 without a journal: after a power cut it may lose checkpoints that were acknowledged",
        f"unmount it, then as root: tune2fs -O has_journal {facts.source} and e2fsck -f {facts.source}",
    )


def _options(facts: PlaceFacts) -> Finding:
    if "nobarrier" in facts.options or "barrier=0" in facts.options:
        return Finding(
            "error",
            "mount options",
            f"{facts.path} is mounted without write barriers: a power cut may lose acknowledged checkpoints",
            f"as root: mount -o remount,barrier {facts.mount}, and mend /etc/fstab",
        )
    if "ro" in facts.options:
        do = "nothing, if it is only to be read; else, as root: mount -o remount,rw, after a look at dmesg"
        return Finding("note", "mount options", f"{facts.mount} is mounted read-only: nothing can be saved", do)
    slow = sorted(facts.options & {"sync", "dirsync"})
    if slow:
        do = f"remount without {', '.join(slow)}: ckstore itself makes durable what has to be"
        return Finding("note", "mount options", f"{facts.mount} is mounted with {', '.join(slow)}: slow", do)
    return ok("mount options", "nothing that weakens a promise")


def _striping(facts: PlaceFacts) -> Finding:
    return Finding(
        "note",
        "striping",
        "on Lustre a file lies on one server unless its directory says otherwise",
        f"before the first save: lfs setstripe -E 1M -c 1 -E -1 -c 4 -S 4M {facts.path}/blobs {facts.path}/staging",
    )
