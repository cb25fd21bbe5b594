"""The report of `ckstore.Store.reindex` on the directories of a store."""

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
    """A directory with the name but not the content of a checkpoint, which a reindex leaves unchanged.

    Attributes:
        run, step: Run and step from the name of the directory.
        problem: One sentence on the missing or wrong part.
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
    """The result of linking all names of a blob to the same file, for each blob with several files.

    Attributes:
        checked_bytes: Number of bytes of blobs that were read and compared with their digests.
        relinked_count: Number of names in checkpoints that had their own file and are now links to the shared file.
        spare_bytes: Total size of the replaced files that had no other name, so that they are freed.
        damaged: Digests of blobs without any intact file. Their files are not changed.
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
    """The content of the directories, as recorded in the new catalog.

    Attributes:
        checkpoint_count: Number of complete checkpoints.
        blob_count, blob_bytes: Number and size of the blobs of these checkpoints, counting each blob once.
        orphan_count, orphan_bytes: Number and size of the blobs in ``blobs/`` that no checkpoint names. The next gc
            frees them.
        restored_count: Number of blobs whose lost name in ``blobs/`` was restored.
        copy_count, copy_bytes: Number and size of the files in checkpoints that are separate copies of a blob, for
            example after copying a store without hardlinks. ``relink`` links them to one file again.
        tag_count, pin_count: Number of tags and pins.
        incomplete: Directories that are not complete checkpoints.
        problems: Other problems, one sentence each, such as dangling tags and unreadable pins or annotations.
        old_catalog: Path of the previous catalog. Empty if the store had no catalog.
        relinked: The result of ``relink``. None if it was not requested.
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
        """Whether every directory is a complete checkpoint and every blob that was read is intact."""
        return not self.incomplete and not (self.relinked and self.relinked.damaged)

    def __str__(self) -> str:
        return in_lines((*starmap(headed, details(self)), *map(printable, self.problems)), summary(self))


def details(report: ReindexReport) -> Iterator[tuple[str, str]]:
    """Yield a heading and a text for each incomplete directory and each damaged blob."""
    yield from (("incomplete", str(one)) for one in report.incomplete)
    if report.relinked is not None:
        yield from (("damaged", what) for what in _damaged(report.relinked))


def summary(report: ReindexReport) -> Iterator[str]:
    """Yield lines on the content of the directories, other findings, and the repairs."""
    if report.relinked is not None:
        yield _relinked(report.relinked)
    held = f"{counted(report.blob_count, 'blob')} of {size_text(report.blob_bytes)}"
    tags, pins = counted(report.tag_count, "tag"), counted(report.pin_count, "pin")
    yield f"{counted(report.checkpoint_count, 'checkpoint')}, {held}, {tags}, {pins}"
    if report.restored_count:
        names, them = ("name", "it") if report.restored_count == 1 else ("names", "them")
        blobs = counted(report.restored_count, "blob")
        yield f"restored the {names} of {blobs} in blobs/, so that new saves can share {them}"
    if report.orphan_count:
        blobs = counted(report.orphan_count, "blob")
        yield f"{blobs} of {size_text(report.orphan_bytes)} unused: ckstore gc frees them"
    if report.copy_count:
        taken = f"copies of blobs take {size_text(report.copy_bytes)} in {counted(report.copy_count, 'file')}"
        yield f"{taken}; ckstore reindex --relink replaces them with hardlinks"
    if report.old_catalog:
        yield printable(f"the old catalog is {report.old_catalog}")


def _damaged(done: RelinkReport) -> Iterator[str]:
    for digest in done.damaged:
        what = f"every file of blob {digest} is damaged; ckstore verify names the checkpoints that need it"
        yield printable(what)


def _relinked(done: RelinkReport) -> str:
    freed = f"which frees {size_text(done.spare_bytes)}; {size_text(done.checked_bytes)} read"
    return f"relinked {counted(done.relinked_count, 'name')}, {freed}"
