"""What `ckstore.Store.reindex` found in the directories of a store, and what it set right."""

from __future__ import annotations

from dataclasses import dataclass


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
    def checkpoint(self) -> str:
        """The full ref, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"


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
