"""The plan and the report of a compaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class CompactionEntry:
    """The plan for one checkpoint.

    Attributes:
        info: The checkpoint.
        place: Its position in its run, which determines the base.
        base: The checkpoint against which it is encoded, as ``RUN@STEP``. Empty if it remains plain.
        reason: Why it is not compacted. Empty if it is compacted.
        shares: Whether the checkpoint remains plain, except for old packs of which it uses only a small part.
        gone_bytes: Size of the data of deleted checkpoints that is needed to decode this checkpoint.
        again: Whether it is already compacted and is only checked again.
    """

    info: CheckpointInfo
    place: int
    base: str = ""
    reason: str = ""
    shares: bool = False
    gone_bytes: int = 0
    again: bool = False

    def __str__(self) -> str:
        act = "is compacted and checked again" if self.again else "encode"
        what = f"skipped, because {self.reason}" if self.reason else f"{act} against {self.base}"
        if self.gone_bytes:
            what += f"; decoded with {size_text(self.gone_bytes)} of deleted checkpoints"
        return printable(f"{self.info.name}: {what}")


@brief()
@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The plan of `Store.compact`.

    Attributes:
        entries: All checkpoints that were considered, by run, beginning with the newest of each run.
    """

    entries: tuple[CompactionEntry, ...]

    @property
    def compacted(self) -> tuple[CompactionEntry, ...]:
        """The checkpoints to encode, and the compacted checkpoints to check again."""
        return tuple(entry for entry in self.entries if not entry.reason)

    def __str__(self) -> str:
        again = sum(entry.again for entry in self.compacted)
        said = f"would compact {len(self.compacted) - again} of {counted(len(self.entries), 'checkpoint')}"
        return in_lines(self.entries, [said + (f", and check {again} compacted ones again" if again else "")])


@brief()
@dataclass(frozen=True, slots=True)
class Compacted:
    """A checkpoint whose directory was rewritten.

    Attributes:
        info: The checkpoint.
        before_bytes: Total size of the plain or encoded files of its blobs before the compaction.
        after_bytes: Total size of the plain or encoded files of its blobs after the compaction.
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
    """A checkpoint that was not changed although the plan compacts it, and the reason."""

    info: CheckpointInfo
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.info.name} was skipped: {self.reason}")


@brief()
@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of a compaction.

    Attributes:
        plan: The plan that was carried out.
        compacted: The checkpoints whose directories were rewritten.
        skipped: Checkpoints that could not be rewritten because they were in use, replaced, or damaged.
        encoded_count: Number of blobs that were encoded.
        plain_bytes: Total size of these blobs.
        encoded_bytes: Total size of their encoded forms.
        dry_run: Whether this was a dry run that changed nothing.
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
    """Yield a line on the number of encoded blobs and their sizes before and after."""
    if not report.encoded_count:
        yield "nothing to compact"
        return
    factor = report.plain_bytes / max(report.encoded_bytes, 1)
    blobs = counted(report.encoded_count, "blob")
    sizes = f"{size_text(report.plain_bytes)} became {size_text(report.encoded_bytes)}"
    yield f"encoded {blobs}: {sizes}, {factor:.3g} times smaller"
