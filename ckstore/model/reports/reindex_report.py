"""What `ckstore.Store.reindex` found in the directories of a store, and what it set right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, headed, in_lines, printable


@brief()
@dataclass(frozen=True, slots=True)
class Incomplete:
    """A directory that is a checkpoint by its name and not by what it holds; it is left alone.

    Attributes:
        run, step: What its name says.
        problem: One sentence: what is missing or wrong.
    """

    run: str
    step: int
    problem: str

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    def __str__(self) -> str:
        return printable(f"{self.name}  {self.problem}")


@brief()
@dataclass(frozen=True, slots=True)
class RelinkReport:
    """What became of files that hold the same blob.

    Attributes:
        checked_bytes: Bytes of blobs that were read and compared with their digests.
        relinked_count: Names in checkpoints that were files of their own and are names of the shared one now.
        spare_bytes: Sizes of the files that lost their last name by that; gc gives them back.
        damaged: Digests of blobs of which no file has the right bytes; they are left as they are.
    """

    checked_bytes: int = 0
    relinked_count: int = 0
    spare_bytes: int = 0
    damaged: tuple[str, ...] = ()

    def __str__(self) -> str:
        return in_lines(_damaged(self), [_relinked(self)])


@brief()
@dataclass(frozen=True, slots=True)
class ReindexReport:
    """What the directories hold, as the new catalog says it.

    Attributes:
        checkpoint_count: Complete checkpoints.
        blob_count, blob_bytes: Blobs that they name, each once.
        orphan_count, orphan_bytes: Blobs in ``blobs/`` that none of them names; the next gc frees them.
        restored_count: Blobs that had lost their name in ``blobs/`` and have it again.
        copy_count, copy_bytes: Names of blobs in checkpoints that are files of their own, as after a copy without
            hardlinks, and their sizes; ``relink`` makes them one file again.
        tag_count, pin_count: Tags and pins that were found.
        incomplete: Directories that are not complete checkpoints.
        problems: What else is wrong, one sentence each: tags that dangle, pins and annotations that cannot be read.
        old_catalog: Where the catalog is that was there before; empty if there was none.
        relinked: What ``relink`` did; None if it was not asked for.
    """

    checkpoint_count: int
    blob_count: int
    blob_bytes: int
    orphan_count: int = 0
    orphan_bytes: int = 0
    restored_count: int = 0
    copy_count: int = 0
    copy_bytes: int = 0
    tag_count: int = 0
    pin_count: int = 0
    incomplete: tuple[Incomplete, ...] = ()
    problems: tuple[str, ...] = ()
    old_catalog: str = ""
    relinked: RelinkReport | None = None

    @property
    def ok(self) -> bool:
        """Whether every directory is a complete checkpoint, and every blob that was read is right."""
        return not self.incomplete and not (self.relinked and self.relinked.damaged)

    def __str__(self) -> str:
        return in_lines((*starmap(headed, details(self)), *map(printable, self.problems)), summary(self))


def details(report: ReindexReport) -> Iterator[tuple[str, str]]:
    """Give a word and what it is about for each thing that is incomplete or damaged."""
    yield from (("incomplete", str(one)) for one in report.incomplete)
    if report.relinked is not None:
        yield from (("damaged", what) for what in _damaged(report.relinked))


def summary(report: ReindexReport) -> Iterator[str]:
    """Say what the directories hold, and what else was found and done."""
    if report.relinked is not None:
        yield _relinked(report.relinked)
    held = f"{counted(report.blob_count, 'blob')} of {size_text(report.blob_bytes)}"
    tags, pins = counted(report.tag_count, "tag"), counted(report.pin_count, "pin")
    yield f"{counted(report.checkpoint_count, 'checkpoint')}, {held}, {tags}, {pins}"
    if report.restored_count:
        its, it = ("its name", "it") if report.restored_count == 1 else ("their names", "them")
        blobs = counted(report.restored_count, "blob")
        yield f"gave {blobs} {its} in blobs/ again, so that new saves can share {it}"
    if report.orphan_count:
        blobs = counted(report.orphan_count, "blob")
        yield f"{blobs} of {size_text(report.orphan_bytes)} unused: ckstore gc frees them"
    if report.copy_count:
        taken = f"{report.copy_count} names of blobs are copies that take {size_text(report.copy_bytes)}"
        yield f"{taken}: ckstore reindex --relink makes them one file again"
    if report.old_catalog:
        yield printable(f"the old catalog is {report.old_catalog}")


def _damaged(done: RelinkReport) -> Iterator[str]:
    for digest in done.damaged:
        what = f"every file of blob {digest} is damaged; ckstore verify names the checkpoints that need it"
        yield printable(what)


def _relinked(done: RelinkReport) -> str:
    freed = f"which frees {size_text(done.spare_bytes)}; {size_text(done.checked_bytes)} read"
    return f"relinked {counted(done.relinked_count, 'name')}, {freed}"
