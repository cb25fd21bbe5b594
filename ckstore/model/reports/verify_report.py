"""The report of a verification: damage, repairs, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    """One problem of one checkpoint.

    Attributes:
        run, step: Run and step of the checkpoint.
        names: The tensors and other values whose bytes are damaged or missing. Empty if no value of the checkpoint is
            affected (because the checkpoint does not use the damaged bytes of a shared blob), or if the affected values
            are unknown.
        blob: Digest of the blob. Empty if the manifest or the directory itself is damaged.
        what: One sentence with the problem and the expected state.
        affects: False if all values of the checkpoint are intact, because the damage is in bytes of a shared blob
            that the checkpoint does not use. Such a checkpoint is not marked as damaged.
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
        """Run, step and directory of the checkpoint."""
        return CheckpointKey(self.run, self.step, self.directory)

    def __str__(self) -> str:
        known = [*self.names, *(path for path in self.files if path not in self.names)]
        listed = f"{some_of([named(name) for name in known], _NAMES_SHOWN)}: " if known and self.affects else ""
        aside = "" if self.affects else " (in a part that this checkpoint does not use)"
        return printable(f"{self.name}  {listed}{self.what}{aside}")


@brief()
@dataclass(frozen=True, slots=True)
class StoreFinding:
    """A finding about the store that does not concern the content of one checkpoint.

    Attributes:
        kind: The kind of the finding. The kinds are:

            - ``touched``: A program wrote into a blob, or copied a blob without its modification time.
            - ``links``: The store has more names of an inode than the link count of the inode allows.
            - ``outside``: An inode has names outside the store.
            - ``name``: A canonical name is missing, or is the name of other bytes.
            - ``unused``: There are blobs that no checkpoint uses.
            - ``deep``: A directory was skipped because it is nested deeper than any directory of a store.
            - ``order``: The sequence number of a checkpoint is ignored.
            - ``catalog``: The catalog disagrees with the directories.
            - ``settings``, ``tag``, ``pin``, ``notes``: A file of this kind is damaged.
            - ``locked``: A checkpoint was not verified or not repaired because another process held its lock for too
              long.
            - ``closed``: A run or a checkpoint was not verified or not repaired because its owner gave this
              user no access.
        what: One sentence that describes the finding.
        subject: Digest of the blob, or the path in the store.
        harmful: Whether the problem may cause a loss of data, or may be damage that only a full read can detect.
        mended: Whether the problem was repaired.
    """

    kind: FindingKind
    what: str
    subject: str = ""
    harmful: bool = False
    mended: bool = False

    @property
    def word(self) -> Literal["mended", "wrong", "note"]:
        """The severity of the finding; ``wrong`` if it is harmful and was not repaired."""
        return "mended" if self.mended else "wrong" if self.harmful else "note"

    def __str__(self) -> str:
        return printable(f"{self.word}  {self.what}")


@brief()
@dataclass(frozen=True, slots=True)
class Repair:
    """A damaged blob or manifest that was repaired.

    Attributes:
        digest: Digest of the blob, or the id of the checkpoint for a manifest.
        nbytes: Size of the blob or the manifest.
        source: The source of the intact bytes.
        checkpoint_count: Number of checkpoints that received the new copy.
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
    """A damaged blob or manifest (empty digest) without an intact copy, and the reason."""

    digest: str
    nbytes: int
    why: str

    def __str__(self) -> str:
        return printable(f"{self.digest or 'manifest'}  {self.why}")


@brief()
@dataclass(frozen=True, slots=True)
class Away:
    """An evicted checkpoint, whose bytes are only on remotes, so that `verify` did not read them.

    Attributes:
        run, step: Run and step of the checkpoint.
        remotes: Names of the remotes that should have its bytes.
        directory: The name of its directory in ``checkpoints/RUN/``.
        as_of: When the content of a remote was last listed, in the format of `CheckpointInfo.created`. Empty if no
            remote was listed.
        missing: The data that each remote lacks. Empty if the listing of one of the remotes has all data.
        unasked: Why a remote was not queried. Empty if it was queried.
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
        where = " and ".join(self.remotes) or "a remote"
        if self.missing:
            return printable(f"{self.name}  cannot be fetched: {self.missing} (as of {minute(self.as_of)})")
        known = f"listed as of {minute(self.as_of)}" if self.as_of else f"not checked: {self.unasked}"
        return printable(f"{self.name}  its data is only on {where}, and was not read; {known}")


@brief()
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `ckstore.Store.verify`.

    Attributes:
        checkpoint_count: Number of checkpoints that were examined, intact or not.
        checked_bytes: Number of bytes of blobs that were read and compared with their digests. A blob that several
            checkpoints share counts once.
        decoded_bytes: Number of bytes of compacted blobs that were decoded and compared, counting each blob once.
        damage: All damage, grouped by checkpoint, in the order in which the checkpoints were published. Checkpoints
            whose order is unknown are last. After a repair, this has only the remaining damage.
        sample: The fraction of the blobs that was chosen to be read, from 0 to 1.
        mode: ``full``, ``sampled`` (also with a budget) or ``quick``.
        whole: The checkpoints, as ``RUN@STEP``, without damage in the data that they use. Checkpoints in `elsewhere`
            are excluded, since their data was not read.
        findings: Findings about the store itself.
        blob_count, read_count: Number of blobs (inodes) that were examined, and number of blobs that were read.
        unread_count: Number of blobs that no recorded verification has read yet.
        oldest_check: The earliest of the times at which the blobs were last read. Empty if a blob was never read.
        in_time: False if the budget ended before all chosen blobs were read.
        remembered: Whether the times of these readings were recorded for the next verification.
        repaired, unrepaired: Repairs that succeeded, and repairs that failed.
        quarantined: Paths of the damaged blobs that were quarantined.
        healable: Damaged blobs of which the store has an intact copy, so that a repair can heal them. Empty after a
            repair, a quick verification, or a verification with a budget, because these do not search for copies.
        elsewhere: The checkpoints with some bytes that only a remote has. A load verifies these bytes when it downloads
            them.
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
        """Whether no damage, no harmful unrepaired finding and no missing remote bytes were detected."""
        if any(one.missing for one in self.elsewhere):
            return False
        return not self.damage and not any(found.harmful and not found.mended for found in self.findings)

    def __str__(self) -> str:
        return in_lines(starmap(headed, details(self)), summary(self))


def with_away(report: VerifyReport, away: Iterable[Away]) -> VerifyReport:
    """Return `report` with the checkpoints whose data was not read because it is not local."""
    return replace(report, elsewhere=tuple(away))


def details(report: VerifyReport) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text for each repair and each finding."""
    yield from (("repaired", str(one)) for one in report.repaired)
    yield from (("not repaired", str(one)) for one in report.unrepaired)
    yield from (("damaged", str(one)) for one in report.damage)
    yield from ((one.word, printable(one.what)) for one in report.findings)
    yield from (("missing" if one.missing else "elsewhere", str(one)) for one in report.elsewhere)
    yield from (("", printable(f"moved aside: {path}")) for path in report.quarantined)


def summary(report: VerifyReport) -> Iterator[str]:
    """Yield lines on the amount of data that was read, the intact checkpoints, and possible repairs."""
    away = {one.name for one in report.elsewhere}
    local_count = report.checkpoint_count - len(report.elsewhere)
    checkpoints = counted(local_count, "checkpoint")
    if report.damage:
        whole = local_count - len({found.name for found in report.damage if found.affects} - away)
        yield f"{whole} of {checkpoints} intact, as far as they were read"
    if report.healable:
        blobs = counted(len(report.healable), "damaged blob")
        yield f"the store has intact copies of {blobs}: ckstore verify --repair heals them"
    decoded = f" and {size_text(report.decoded_bytes)} decoded" if report.decoded_bytes else ""
    read = f"{checkpoints}, {size_text(report.checked_bytes)} read{decoded}"
    if report.mode == "sampled":
        if report.unread_count:
            yield f"{report.unread_count} of {report.blob_count} blobs were never read by a verification"
        elif report.oldest_check:
            yield printable(f"every blob was read since {report.oldest_check}")
        else:
            yield "there are no blobs"
        read += f" ({report.read_count} of {report.blob_count} blobs{'' if report.in_time else ', then time was up'})"
    elif report.mode == "quick":
        read = f"{checkpoints}, no data read"
    if lost := sum(bool(one.missing) for one in report.elsewhere):
        yield f"{counted(lost, 'checkpoint')} cannot be fetched: the remote that should have the bytes lacks some"
    yield from _remote_only(report.elsewhere)
    bad_count = len({damage.name for damage in report.damage})
    if local_count or bad_count or report.checked_bytes or not away:
        yield f"{read}: {f'{bad_count} with damage' if bad_count else 'no damage'}"


def _remote_only(elsewhere: Sequence[Away]) -> Iterator[str]:
    """Yield lines on the checkpoints whose data was not read, since only remotes have it."""
    listed = [one.as_of for one in elsewhere if one.as_of and not one.missing]
    unasked_count = sum(bool(one.unasked) for one in elsewhere)
    for count, known in (
        (len(listed), f"listed as of {minute(min(listed, default=''))}, not read"),
        (unasked_count, "not checked"),
    ):
        if count:
            yield f"{counted(count, 'checkpoint')} {'is' if count == 1 else 'are'} only on a remote: {known}"


def minute(created: str) -> str:
    """Return a text with the minute of a time in the format of `CheckpointInfo.created`."""
    return f"{created[:16].replace('T', ' ')} UTC"
