"""What was found damaged, what was mended, and what a verification says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.names import CheckpointKey
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, headed, in_lines, named, printable, some_of

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
    "closed",
]
_NAMES_SHOWN = 5


@brief()
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
        directory: The name of its directory in ``checkpoints/RUN/``.
    """

    run: str
    step: int
    names: tuple[str, ...]
    blob: str
    what: str
    affects: bool = True
    files: tuple[str, ...] = ()
    directory: str = ""

    @property
    def name(self) -> str:
        """``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    @property
    def key(self) -> CheckpointKey:
        """Where it is."""
        return CheckpointKey(self.run, self.step, self.directory)

    def __str__(self) -> str:
        known = [*self.names, *(path for path in self.files if path not in self.names)]
        listed = f"{some_of([named(name) for name in known], _NAMES_SHOWN)}: " if known and self.affects else ""
        aside = "" if self.affects else " (in a part that this checkpoint does not use)"
        return printable(f"{self.name}  {listed}{self.what}{aside}")


@brief()
@dataclass(frozen=True, slots=True)
class StoreFinding:
    """Something about the store that is not the content of one checkpoint.

    Attributes:
        kind: ``touched``: a program wrote into a blob, or copied it without its time. ``links``: an inode has fewer
            names than its count of links says are in use. ``outside``: it has names outside the store. ``name``: a
            canonical name was lost, or gives other bytes. ``unused``: no checkpoint uses a blob. ``order``: the
            sequence number of a checkpoint does not count. ``catalog``: it says
            something else than the directories. ``settings``, ``tag``, ``pin``, ``notes``: such a file is damaged.
            ``locked``: a checkpoint was not looked at, or not repaired, since another process had it locked for long.
            ``closed``: a run or a checkpoint was not, since it is another user's, who gave this one no access.
        what: One sentence.
        subject: Digest of the blob, or the path in the store.
        harmful: Whether something is wrong that may cost data, or that only a reading of everything can show.
        mended: Whether it was set right.
    """

    kind: FindingKind
    what: str
    subject: str = ""
    harmful: bool = False
    mended: bool = False

    @property
    def word(self) -> Literal["mended", "wrong", "note"]:
        """How bad it is: ``wrong`` if it is harmful and was not mended."""
        return "mended" if self.mended else "wrong" if self.harmful else "note"

    def __str__(self) -> str:
        return printable(f"{self.word}  {self.what}")


@brief()
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

    def __str__(self) -> str:
        return printable(f"{self.digest}  from {self.source}, for {counted(self.checkpoint_count, 'checkpoint')}")


@brief()
@dataclass(frozen=True, slots=True)
class Unrepaired:
    """A blob, or a manifest (empty digest), of which no right copy was found, and why that is."""

    digest: str
    nbytes: int
    why: str

    def __str__(self) -> str:
        return printable(f"{self.digest or 'manifest'}  {self.why}")


@brief()
@dataclass(frozen=True, slots=True)
class Away:
    """A checkpoint that was evicted: only remotes have its bytes, and `verify` did not read them.

    Attributes:
        run, step: Which.
        remotes: Names of the remotes that should have them.
        directory: The name of its directory in ``checkpoints/RUN/``.
        as_of: When a remote listed what it has, as `CheckpointInfo.created`; empty if none did.
        missing: What each of the remotes lacks; empty: one of them listed all of it.
        unasked: Why a remote was not asked; empty if it was.
    """

    run: str
    step: int
    remotes: tuple[str, ...]
    directory: str = ""
    as_of: str = ""
    missing: str = ""
    unasked: str = ""

    @property
    def name(self) -> str:
        """The full ref of the checkpoint, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    def __str__(self) -> str:
        at = f", at {' and '.join(self.remotes)}" if self.remotes else ""
        if self.missing:
            return printable(f"{self.name}  cannot be fetched: {self.missing} (as of {_minute(self.as_of)})")
        known = f"listed there as of {_minute(self.as_of)}" if self.as_of else f"not looked at: {self.unasked}"
        return printable(f"{self.name}  bytes of it are elsewhere{at}, and were not read; {known}")


@brief()
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `ckstore.Store.verify` found.

    Attributes:
        checkpoint_count: Checkpoints, whole or not, that were looked at.
        checked_bytes: Bytes of blobs that were read and compared with their digests; a blob that several
            checkpoints share counts once.
        decoded_bytes: Bytes that were decoded and compared, of blobs that compaction encoded; each once.
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
        elsewhere: The checkpoints of which bytes are at a remote alone; those are compared when they are fetched.
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
    elsewhere: tuple[Away, ...] = ()
    decoded_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with what was looked at."""
        if any(one.missing for one in self.elsewhere):
            return False
        return not self.damage and not any(found.harmful and not found.mended for found in self.findings)

    def __str__(self) -> str:
        return in_lines(starmap(headed, details(self)), summary(self))


def details(report: VerifyReport) -> Iterator[tuple[str, str]]:
    """Give a word and what it is about for each thing that was repaired or found."""
    yield from (("repaired", str(one)) for one in report.repaired)
    yield from (("not repaired", str(one)) for one in report.unrepaired)
    yield from (("damaged", str(one)) for one in report.damage)
    yield from ((one.word, printable(one.what)) for one in report.findings)
    yield from (("missing" if one.missing else "elsewhere", str(one)) for one in report.elsewhere)
    yield from (("", printable(f"moved aside: {path}")) for path in report.quarantined)


def summary(report: VerifyReport) -> Iterator[str]:
    """Say how much was read, how much of it is whole, and what to do."""
    checkpoints = counted(report.checkpoint_count, "checkpoint")
    if report.damage:
        whole = report.checkpoint_count - len({found.name for found in report.damage if found.affects})
        yield f"{whole} of {checkpoints} whole, as far as was read"
    if report.healable:
        blobs = counted(len(report.healable), "damaged blob")
        yield f"the store has right copies of {blobs}: ckstore verify --repair heals"
    decoded = f" and {size_text(report.decoded_bytes)} decoded" if report.decoded_bytes else ""
    read = f"{checkpoints}, {size_text(report.checked_bytes)} read{decoded}"
    if report.mode == "sampled":
        yield _age(report)
        read += f" ({report.read_count} of {report.blob_count} blobs{'' if report.in_time else ', then time was up'})"
    elif report.mode == "quick":
        read = f"{checkpoints}, no data read"
    if lost := sum(bool(one.missing) for one in report.elsewhere):
        yield f"{counted(lost, 'checkpoint')} cannot be fetched: the remote that should have the bytes lacks some"
    bad_count = len({damage.name for damage in report.damage})
    yield f"{read}: {f'{bad_count} with damage' if bad_count else 'no damage'}"


def _minute(created: str) -> str:
    return f"{created[:16].replace('T', ' ')} UTC"


def _age(report: VerifyReport) -> str:
    if report.unread_count:
        return f"{report.unread_count} of {report.blob_count} blobs were never read by a verification"
    if not report.oldest_check:
        return "there are no blobs"
    return printable(f"every blob was read since {report.oldest_check}")
