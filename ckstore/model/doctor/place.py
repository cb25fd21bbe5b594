"""Findings about the filesystem of a store: type, mount options, locks, and durability in a power cut.

docs/how-to/shared.md lists the tested filesystems.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ckstore.model.doctor.finding import DoctorFinding, ok
from ckstore.model.host import reach_of_locks

_ONE_HOST = "save to a run, and prune it, on one host"


def check_locks(kind: str, options: AbstractSet[str]) -> DoctorFinding:
    """Check whether file locks on a shared filesystem reach other hosts."""
    hosts, why, mended = reach_of_locks(kind, options)
    if hosts:
        return ok("locks", "file locks reach other hosts, so only one host changes a run or the settings at a time")
    if hosts is None:
        told = f"it is unknown whether file locks on {kind} reach other hosts"
        do = f"{_ONE_HOST}, unless its documentation says that flock(2) reaches other hosts"
    else:
        told = f"{kind} is mounted so that locks do not reach other hosts ({why})"
        do = f"{_ONE_HOST}; or {mended}"
    return DoctorFinding("warning", "locks", f"{told}, so write each run from only one host at a time", do)


MEMORY = frozenset({"tmpfs", "ramfs"})
NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "lustre", "beegfs", "gpfs", "afs", "coda"}
    | {"gfs2", "ocfs2", "orangefs", "pvfs2", "panfs", "wekafs", "vboxsf", "dvs"}
)
_FUSE = "fuse"
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.bindfs"})
TRIED = frozenset({"ext4", "xfs"})
JOURNALED = frozenset({"ext3", "ext4"})
"""Filesystems that may have been created with or without a journal."""
_KEEPING = TRIED | JOURNALED | {"btrfs"}
_WITHOUT_JOURNAL = frozenset({"ext2", "vfat", "msdos", "exfat"})
_VOLATILE = frozenset({"volatile", "fsync=volatile"})
_NO_BARRIER = frozenset({"nobarrier", "barrier=0"})
_LOCAL = "put the store on ext4 or XFS on a disk of this machine: move it with cp -a, then ckstore reindex"


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """The filesystem of a directory."""

    path: str
    # The type as in ``/proc/self/mountinfo``, such as ext4, xfs or tmpfs. It is empty for an unknown local filesystem,
    # and ``0x…`` if only the number of the type is known.
    kind: str = ""
    mount: str = ""  # the mount point
    source: str = ""  # source of the mount, usually a device
    options: frozenset[str] = frozenset()  # options of the mount and of the filesystem
    journal: bool | None = None  # whether an ext3 or ext4 filesystem has a journal; None if unknown or another type
    # The filesystem that stores the data of this one. For an overlay, this is the filesystem of the upper layer. For a
    # loop device, it is the filesystem of the backing file. None if there is no such filesystem or it is not visible.
    below: PlaceFacts | None = None
    told: bool | None = None  # whether other machines use the filesystem, according to the settings; None if not set

    @property
    def other_hosts(self) -> bool:
        """Whether other machines may also use the filesystem."""
        return self.other_hosts_by_kind if self.told is None else self.told

    @property
    def other_hosts_by_kind(self) -> bool:
        """Whether other machines may also have the filesystem mounted, according to its type.

        This is also true for a filesystem that a program provides (FUSE), because the program may also serve other
        machines.
        """
        by_program = self.kind.partition(".")[0] == _FUSE and self.kind not in _LOCAL_FUSE
        return self.kind in NETWORK or by_program or self.is_unheard_of

    @property
    def is_unheard_of(self) -> bool:
        """Whether only the number of the filesystem type is known, so that other machines may have it mounted."""
        return self.kind.startswith("0x")

    @property
    def durable(self) -> bool:
        """Whether the filesystem is known to keep synced data through a power cut, provided that the disk does."""
        return not why_not_durable(self) and not why_unknown(self)


def why_of_several_hosts(facts: PlaceFacts, path: object) -> str:
    """Return why other machines may use the directory `path`: the type of its filesystem, or the user's settings.

    The result is empty if no other machine may use the directory.
    """
    if facts.is_unheard_of:
        return f"ckstore does not know the filesystem of {path} ({facts.kind}), which other hosts may use"
    if facts.other_hosts_by_kind:
        return f"{path} is on {facts.kind}, a shared filesystem"
    return f"its settings say that other hosts may use {path}" if facts.other_hosts else ""


def why_not_durable(facts: PlaceFacts) -> str:
    """Return why a power cut may lose acknowledged data on this filesystem, as the end of a sentence.

    The result is empty if no reason is known.
    """
    if facts.kind in MEMORY:
        return f"is on {facts.kind}, which is memory: nothing survives a restart of the machine"
    if facts.journal is False:
        return "is on ext4 without a journal: after a power cut it may lose checkpoints that were acknowledged"
    if facts.kind in _WITHOUT_JOURNAL:
        return f"is on {facts.kind}: after a power cut it may lose checkpoints that were acknowledged"
    if facts.options & _VOLATILE:
        return "is on an overlay that is mounted volatile: fsync has no effect, so a power cut loses saves"
    if facts.options & _NO_BARRIER:
        return "is mounted without write barriers: a power cut may lose acknowledged checkpoints"
    if facts.below is None or not (why := why_not_durable(facts.below)):
        return ""
    # If the filesystem below stores a loop device's file and is not in memory, `durability` only notes its problem.
    if facts.kind == "overlay" or _is_memory(facts.below):
        return f"keeps its files in {facts.below.path}, which {why}"
    return ""


def _is_memory(facts: PlaceFacts) -> bool:
    return facts.kind in MEMORY or (facts.below is not None and _is_memory(facts.below))


def why_unknown(facts: PlaceFacts) -> str:
    """Return why it is unknown whether a power cut loses acknowledged data; empty if it is known."""
    kind = facts.kind
    if not kind:
        return "/proc/self/mountinfo does not show its filesystem"
    if kind == "overlay":
        if facts.below is None:
            return "the upper layer of the overlay is not visible, for example in a container"
        return why_unknown(facts.below)
    if kind in JOURNALED and facts.journal is None:
        return f"/sys/fs/ext4 does not show whether {facts.source} has a journal"
    if kind in _KEEPING | MEMORY | _WITHOUT_JOURNAL:
        return ""
    if kind.startswith(_FUSE):
        return f"a program provides it ({kind})"
    if kind in NETWORK:
        return f"it depends on other machines ({kind})"
    return f"power cuts are tested on ext4 and XFS, not on {kind}"


def check_place(facts: PlaceFacts) -> list[DoctorFinding]:
    """Return the findings about the filesystem."""
    found = [_filesystem(facts)]
    if facts.other_hosts:
        found.append(check_locks(facts.kind, facts.options))
    found += [_journal(facts), _options(facts), durability(facts)]
    if facts.kind == "lustre":
        told = "on Lustre, a file is on one server unless its directory is striped"
        layout = "-E 1M -c 1 -E -1 -c 4 -S 4M"
        do = f"before the first save: lfs setstripe {layout} {facts.path}/blobs {facts.path}/staging"
        found.append(DoctorFinding("note", "striping", told, do))
    return found


def _filesystem(facts: PlaceFacts) -> DoctorFinding:
    path, kind = facts.path, facts.kind
    if not kind:
        told = f"the filesystem of {path} is not known: /proc/self/mountinfo does not list it"
        do = "check it with df -T; ckstore is tested on ext4 and XFS"
        return DoctorFinding("note", "filesystem", told, do)
    if facts.other_hosts:
        told = (
            f"{why_of_several_hosts(facts, path)}: hosts do not see which files another host has open, so "
            "gc frees blobs after a grace period"
        )
        do = "when no other host uses the store, ckstore gc --exclusive frees at once"
        return DoctorFinding("warning", "filesystem", told, f"{do}; or keep the store on a local disk")
    if kind == "overlay":
        told = (
            f"{path} is on overlayfs. Open files are not always visible, and checkpoints that came with an image "
            "cannot be deleted or compacted, so use a volume for the store"
        )
        do = "in a container, mount a volume or a directory of the host, and put the store on it"
        return DoctorFinding("warning", "filesystem", told, do)
    where = f"{kind} on {facts.source}, mounted at {facts.mount}"
    if kind in TRIED:
        return ok("filesystem", where)
    do = "it may keep all guarantees, but power cuts are only tested on ext4 and XFS; prefer those"
    return DoctorFinding("note", "filesystem", where, do)


def _journal(facts: PlaceFacts) -> DoctorFinding:
    if facts.kind not in JOURNALED:
        return ok("journal", "only ext4 and ext3 can be created without one")
    if facts.journal is None:
        do = "check as root: dumpe2fs -h DEVICE must list has_journal"
        return DoctorFinding("note", "journal", f"it is not visible whether {facts.source} has a journal", do)
    if not facts.journal:
        return DoctorFinding("note", "journal", f"{facts.source} has no journal", "see durability, below")
    return ok("journal", f"{facts.source} has one")


def _options(facts: PlaceFacts) -> DoctorFinding:
    if "ro" in facts.options:
        do = "nothing, if you only read from it; otherwise check dmesg, then run mount -o remount,rw as root"
        return DoctorFinding("note", "mount options", f"{facts.mount} is mounted read-only: nothing can be saved", do)
    slow = sorted(facts.options & {"sync", "dirsync"})
    if slow:
        do = f"remount without {', '.join(slow)}, since ckstore syncs everything that must be durable"
        return DoctorFinding("note", "mount options", f"{facts.mount} is mounted with {', '.join(slow)}: slow", do)
    return ok("mount options", "nothing that weakens a promise")


def durability(facts: PlaceFacts) -> DoctorFinding:
    """Check whether the filesystem is durable (`PlaceFacts.durable`)."""
    if why := why_not_durable(facts):
        return DoctorFinding("error", "durability", f"{facts.path} {why}", _mended(facts))
    if why := why_unknown(facts):
        told = f"whether {facts.path} keeps acknowledged checkpoints through a power cut could not be determined: {why}"
        return DoctorFinding("warning", "durability", told, f"if that matters, {_LOCAL}")
    if facts.below is not None and not facts.below.durable:
        why = why_not_durable(facts.below) or f"is of unknown kind: {why_unknown(facts.below)}"
        told = f"{facts.mount} is durable, but its files are in {facts.below.path}, which {why}"
        do = "nothing, if that is intended; otherwise put the store directly on a disk"
        return DoctorFinding("note", "durability", told, do)
    return ok("durability", f"{facts.kind} keeps acknowledged checkpoints through a power cut")


def _mended(facts: PlaceFacts) -> str:
    if facts.kind in JOURNALED and facts.journal is False:
        give = f"as root: tune2fs -O has_journal {facts.source} and e2fsck -f {facts.source}"
        if facts.mount != "/":
            return f"unmount it, then {give}"
        return (
            "put the store on another filesystem, which has a journal. Or give this one a journal; a running system "
            f"cannot unmount /, so start a rescue system, then {give}"
        )
    if facts.options & _NO_BARRIER:
        return f"as root: mount -o remount,barrier {facts.mount}, and correct /etc/fstab"
    if facts.kind == "overlay":
        return "in a container, mount a volume or a directory of the host on ext4 or XFS, and put the store on it"
    return _LOCAL
