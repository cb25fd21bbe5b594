"""What the filesystem at a place can keep: found out by looking and trying, not guessed."""

from __future__ import annotations

import errno
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from ckstore.errors import UnsafePlace
from ckstore.fs import links

_NOT_DURABLE = {"tmpfs", "ramfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "lustre", "beegfs", "gpfs"}


@dataclass(frozen=True, slots=True)
class Place:
    """The filesystem of a directory.

    Attributes:
        kind: As in ``/proc/self/mountinfo``: ext4, xfs, tmpfs …; empty if unknown.
        mount: Where it is mounted.
        durable: Whether it keeps what was made durable through a power cut, as far as can be seen.
        warnings: What the user should know, one sentence each.
    """

    kind: str
    mount: str
    durable: bool
    warnings: tuple[str, ...]


def examine(path: Path) -> Place:
    """Look at the filesystem of the directory `path`; nothing is written."""
    kind, mount, device, options = _mount_of(path)
    warnings = []
    durable = True
    if kind in _NOT_DURABLE:
        durable = False
        warnings.append(f"{path} is on {kind}, which is memory: nothing survives a restart of the machine")
    if kind == "ext4" and _has_no_journal(device):
        durable = False
        warnings.append(
            f"{path} is on ext4 without a journal: after a power cut it may lose checkpoints that were acknowledged"
        )
    if "nobarrier" in options or "barrier=0" in options:
        durable = False
        warnings.append(f"{path} is mounted without write barriers: a power cut may lose acknowledged checkpoints")
    if kind in _NETWORK:
        warnings.append(f"{path} is on {kind}, a shared filesystem: one host at a time may write to this store")
    if kind == "overlay":
        warnings.append(f"{path} is on overlayfs: open files cannot always be seen; use a volume for the store")
    return Place(kind=kind, mount=mount, durable=durable, warnings=tuple(warnings))


def _mount_of(path: Path) -> tuple[str, str, str, set[str]]:
    """Return type, mount point, device and options of the filesystem that holds `path`."""
    status = os.stat(path)
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    best = ("", "", "", set[str]())
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return best
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) > 5 and len(rest) > 1 and fields[2] == number:
            options = set(fields[5].split(",")) | set((rest[2] if len(rest) > 2 else "").split(","))
            best = (rest[0], fields[4].replace("\\040", " "), rest[1], options)
    return best


def _has_no_journal(device: str) -> bool:
    try:
        name = os.path.basename(os.path.realpath(device))
        task = Path("/sys/fs/ext4", name, "journal_task").read_text(encoding="ascii").strip()
    except OSError:
        return False
    return task == "<none>"


def try_links(directories: tuple[Path, ...]) -> None:
    """Try what a store needs between its directories: hardlinks, renames, and the exchange of two names.

    Raises:
        UnsafePlace: Something does not work; the message says what and where.
    """
    token = f".try-{uuid.uuid4().hex[:12]}"
    first = directories[0] / token
    made: list[Path] = []
    try:
        os.close(os.open(first, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        made.append(first)
        for directory in directories[1:]:
            other = directory / token
            links.link(first, other)
            made.append(other)
        if os.stat(first).st_nlink != len(made):
            msg = f"{directories[0].parent}: hardlinks are not counted there"
            raise UnsafePlace(msg, hint="use ext4, XFS or btrfs")
        second = directories[0] / f"{token}-2"
        links.rename(made.pop(), second)
        made.append(second)
        links.exchange(first, second)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        msg = f"{directories[0].parent}: hardlinks and renames between its directories do not work: {error.strerror}"
        raise UnsafePlace(
            msg, hint="keep the whole store on one filesystem with hardlinks: ext4, XFS or btrfs"
        ) from error
    finally:
        for path in made:
            links.unlink(path)
