"""What was found damaged, what was mended, and what a verification says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["full", "sampled", "quick"]
FindingKind = Literal[
    "touched",
    "links",
    "outside",
    "name",
    "unused",
    "order",
    "catalog",
    "settings",
    "tag",
    "pin",
    "notes",
    "deep",
    "locked",
]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with one checkpoint.

    Attributes:
        run, step: Which checkpoint.
        names: The tensors and other values whose bytes are damaged or missing; empty when no value of the
            checkpoint is, as for bytes of a shared blob that it does not use, or when it is not known which are.
        blob: Digest of the blob; empty when the manifest or the directory itself is damaged.
        what: One sentence: what is wrong, what was wanted.
        affects: False if everything that the checkpoint holds is still right: the damage is in bytes of a
            shared blob that it does not use. Such a checkpoint is not marked.
        files: The committed files whose bytes are damaged or missing.
    """

    run: str
    step: int
    names: tuple[str, ...]
    blob: str
    what: str
    affects: bool = True
    files: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> str:
        """The full ref of the checkpoint, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """Something about the store that is not the content of one checkpoint.

    Attributes:
        kind: ``touched``: a program wrote into a blob, or copied it without its time. ``links``: an inode has fewer
            names than its count of links says are in use. ``outside``: it has names outside the store. ``name``: a
            canonical name was lost, or gives other bytes. ``unused``: no checkpoint uses a blob. ``order``: the
            sequence number of a checkpoint does not count. ``catalog``: it says
            something else than the directories. ``settings``, ``tag``, ``pin``, ``notes``: such a file is damaged.
            ``locked``: a checkpoint was not looked at, since another process had it locked for long.
        what: One sentence.
        subject: Digest of the blob, or the path in the store.
        harmful: Whether something is wrong that may cost data, or that only reading everything can tell.
        mended: Whether it was set right.
    """

    kind: FindingKind
    what: str
    subject: str = ""
    harmful: bool = False
    mended: bool = False


@dataclass(frozen=True, slots=True)
class Repair:
    """A blob, or a manifest, that was damaged and is right again.

    Attributes:
        digest: Of the blob; for a manifest the id of the checkpoint.
        nbytes: Its size.
        source: Where the right bytes were found.
        checkpoint_count: Checkpoints that were given the new copy.
    """

    digest: str
    nbytes: int
    source: str
    checkpoint_count: int


@dataclass(frozen=True, slots=True)
class Unrepaired:
    """A blob, or a manifest (empty digest), of which no right copy was found, and why that is."""

    digest: str
    nbytes: int
    why: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `ckstore.Store.verify` found.

    Attributes:
        checkpoint_count: Checkpoints, whole or not, that were looked at.
        checked_bytes: Bytes of blobs that were read and compared with their digests; a blob that several
            checkpoints share counts once.
        damage: Everything that is wrong, by checkpoint in the order of their commits; those whose order cannot be
            told come last. After a repair: what is still wrong.
        sample: The part of the blobs that was to be read, from 0 to 1; 1 is all.
        mode: ``full``, ``sampled`` (also with a budget) or ``quick``.
        whole: The checkpoints, ``RUN@STEP``, in which nothing that they use was found wrong.
        findings: What is to be said about the store itself.
        blob_count, read_count: Blobs (inodes) that were looked at, and that were read.
        unread_count: Blobs that no verification has read yet, as far as is remembered.
        oldest_check: When the blob was read that was read longest ago; empty if some never were.
        in_time: False if the budget ended before everything chosen was read.
        remembered: Whether what was read when is remembered for the next time.
        repaired, unrepaired: What a repair did, and what it could not.
        quarantined: Paths of the damaged blobs that were put aside.
        healable: Damaged blobs of which the store has a right copy: a repair heals them. Empty after a repair, of a
            quick verification, and of one with a budget, which do not look for it.
    """

    checkpoint_count: int
    checked_bytes: int
    damage: tuple[Damage, ...] = ()
    sample: float = 1.0
    mode: Mode = "full"
    whole: tuple[str, ...] = ()
    findings: tuple[StoreFinding, ...] = ()
    blob_count: int = 0
    read_count: int = 0
    unread_count: int = 0
    oldest_check: str = ""
    in_time: bool = True
    remembered: bool = False
    repaired: tuple[Repair, ...] = ()
    unrepaired: tuple[Unrepaired, ...] = ()
    quarantined: tuple[str, ...] = ()
    healable: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what was looked at."""
        return not self.damage and not any(found.harmful and not found.mended for found in self.findings)
