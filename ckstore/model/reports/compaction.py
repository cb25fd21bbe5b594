"""What a compaction is to do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckstore.model.manifest.info import CheckpointInfo


@brief()
@dataclass(frozen=True, slots=True)
class CompactionEntry:
    """What a plan does with one checkpoint.

    Attributes:
        info: Which.
        place: Its place in the chain of its run.
        base: The checkpoint that it is encoded against, ``RUN@STEP``; empty where it stays plain.
        reason: Why it stays as it is; empty if it is compacted.
        shares: Whether old packs of which it needs little are encoded in its directory, too, although it stays plain.
        gone_bytes: The bytes of checkpoints that are gone that this one is decoded with.
        again: Whether it is compacted already, and only looked at again.
    """

    info: CheckpointInfo
    place: int
    base: str = ""
    reason: str = ""
    shares: bool = False
    gone_bytes: int = 0
    again: bool = False

    def __str__(self) -> str:
        act = "is compacted; looked at again" if self.again else "encode"
        what = f"stays as it is: {self.reason}" if self.reason else f"{act} against {self.base}"
        if self.gone_bytes:
            what += f"; decoded with {size_text(self.gone_bytes)} of checkpoints that are gone"
        return printable(f"{self.info.name}: {what}")


@brief()
@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What `Store.compact` does.

    Attributes:
        entries: Every checkpoint that was looked at, by run and from the newest on.
    """

    entries: tuple[CompactionEntry, ...]

    @property
    def compacted(self) -> tuple[CompactionEntry, ...]:
        """Those that are to be encoded, or are and are looked at again."""
        return tuple(entry for entry in self.entries if not entry.reason)

    def __str__(self) -> str:
        again = sum(entry.again for entry in self.compacted)
        said = f"would compact {len(self.compacted) - again} of {counted(len(self.entries), 'checkpoint')}"
        return in_lines(self.entries, [said + (f", and look again at {again} that are compacted" if again else "")])


@brief()
@dataclass(frozen=True, slots=True)
class Compacted:
    """A checkpoint whose directory was written again.

    Attributes:
        info: Which.
        before_bytes: Sizes of the files of its own blobs before, plain or encoded.
        after_bytes: The same now.
    """

    info: CheckpointInfo
    before_bytes: int
    after_bytes: int

    def __str__(self) -> str:
        sizes = f"{size_text(self.before_bytes)} became {size_text(self.after_bytes)}"
        return printable(f"{self.info.name}: {sizes}")


@brief()
@dataclass(frozen=True, slots=True)
class Uncompacted:
    """A checkpoint that the plan compacts and that is as it was, and why."""

    info: CheckpointInfo
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.info.name} stays as it is: {self.reason}")


@brief()
@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction did.

    Attributes:
        plan: What it was to do.
        compacted: The checkpoints whose directories were written again.
        skipped: Those that could not be: in use, replaced meanwhile, damaged.
        encoded_count: Blobs that were encoded.
        plain_bytes: Their sizes.
        encoded_bytes: The sizes of their encoded forms.
        dry_run: Whether nothing was done.
    """

    plan: CompactionPlan
    compacted: tuple[Compacted, ...] = ()
    skipped: tuple[Uncompacted, ...] = ()
    encoded_count: int = 0
    plain_bytes: int = 0
    encoded_bytes: int = 0
    dry_run: bool = False

    def __str__(self) -> str:
        if self.dry_run:
            return str(self.plan)
        return in_lines((*self.skipped, *self.compacted), outcome(self))


def outcome(report: CompactionReport) -> Iterator[str]:
    """Say how much smaller the store became."""
    if not report.encoded_count:
        yield "nothing to compact"
        return
    factor = report.plain_bytes / max(report.encoded_bytes, 1)
    blobs = counted(report.encoded_count, "blob")
    sizes = f"{size_text(report.plain_bytes)} became {size_text(report.encoded_bytes)}"
    yield f"encoded {blobs}: {sizes}, {factor:.3g} times smaller"
