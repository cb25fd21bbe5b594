"""What checkpoints take on the disk, and what dropping one would free. Sizes are bytes of blobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.manifest.info import shown_name
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, named, printable, some_of

_ALIGNMENT = 64
DEAD_PART = "(no tensor: nothing uses this part any more)"
"""Said in the place of names that use a blob."""


@brief()
@dataclass(frozen=True, slots=True)
class CheckpointUsage:
    """What one checkpoint takes.

    Attributes:
        run, step: Which.
        logical_bytes: What a copy of it without any sharing would take.
        alone_bytes: Blobs that only this checkpoint has: dropping it, and a gc, frees them, unless
            a process has them open.
        shared_bytes: Its part of the blobs that others have too (other checkpoints, a save in flight, names outside
            the store): of a blob that three checkpoints have, a third. So the parts of all add up.
        dead_bytes: The part of its packs that is dead, at most: what lies in them beyond the most that any single
            checkpoint uses.
        packed_bytes: By how much the dead bytes grow when it is dropped: what only it uses of packs that others use as
            well.
        id: Its id.
        superseded: Whether its step has a newer checkpoint, which ``RUN@STEP`` names.
    """

    run: str
    step: int
    logical_bytes: int
    alone_bytes: int
    shared_bytes: int
    dead_bytes: int
    id: str = ""
    superseded: bool = False
    packed_bytes: int = 0

    @property
    def name(self) -> str:
        """``RUN@STEP``: the full ref of the checkpoint, unless it is superseded."""
        return f"{self.run}@{self.step}"

    @property
    def shown(self) -> str:
        """As `name`; of a superseded one with the first digits of its id."""
        return shown_name(self.name, self.id, superseded=self.superseded)

    def __str__(self) -> str:
        logical, alone, shared = map(size_text, (self.logical_bytes, self.alone_bytes, self.shared_bytes))
        return printable(f"{self.shown} holds {logical}: {alone} alone, {shared} as its part of what is shared")


@brief("run", "checkpoint_count", "logical_bytes", "alone_bytes", "shared_bytes")
@dataclass(frozen=True, slots=True)
class RunUsage:
    """What the checkpoints of one run take together.

    Attributes:
        run: Its name.
        checkpoint_count: How many complete checkpoints it has.
        logical_bytes: What copies of them without any sharing would take.
        alone_bytes: Blobs that only this run has: dropping all of it, and a gc, frees them.
        shared_bytes: Its part of the blobs that other runs have too: the sum of the parts of its checkpoints.
        checkpoints: What each of them takes, in the order of their commits.
        packed_bytes: As of a checkpoint, of all of the run together.
    """

    run: str
    checkpoint_count: int
    logical_bytes: int
    alone_bytes: int
    shared_bytes: int
    checkpoints: tuple[CheckpointUsage, ...]
    packed_bytes: int = 0

    def __str__(self) -> str:
        count = counted(self.checkpoint_count, "checkpoint")
        logical, alone, shared = map(size_text, (self.logical_bytes, self.alone_bytes, self.shared_bytes))
        return printable(f"{self.run}: {count} of {logical}: {alone} alone, {shared} as its part of what is shared")


@brief()
@dataclass(frozen=True, slots=True)
class Usage:
    """What the checkpoints of a store take. Each column of runs and of checkpoints adds up.

    Attributes:
        runs: What each run takes, the one that holds most alone first.
        checkpoints: One for each complete checkpoint, in the order of their commits.
        logical_bytes: Sum over all of them: what they would take without a store.
        disk_bytes: Blobs on disk, each file once; the sum of the next four.
        alone_bytes: Blobs that a single checkpoint has.
        shared_bytes: Blobs that several have, each once.
        unused_bytes: Blobs that no checkpoint has; gc frees them.
        waiting_bytes: Blobs of dropped checkpoints alone, which `Store.dropped` lists; freed later.
        dead_bytes: The part of all packs that is dead, each pack once; see `CheckpointUsage`.
        saved_bytes: By how much compaction made blobs smaller: those that are encoded, and nowhere plain any more.
        encoded_bytes: The part of `disk_bytes` in encoded forms of blobs.
        cached_bytes: What reads of checkpoints elsewhere fetched and the cache keeps, beside `disk_bytes`.
        elsewhere_bytes: The part of `logical_bytes` in checkpoints of which bytes are at a remote alone.
        bytes_by_user: User id -> the part of `disk_bytes` in files of that user, who alone can free it, or root.
    """

    runs: tuple[RunUsage, ...]
    checkpoints: tuple[CheckpointUsage, ...]
    logical_bytes: int
    disk_bytes: int
    alone_bytes: int
    shared_bytes: int
    unused_bytes: int
    waiting_bytes: int
    dead_bytes: int
    saved_bytes: int = 0
    encoded_bytes: int = 0
    cached_bytes: int = 0
    elsewhere_bytes: int = 0
    bytes_by_user: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return in_lines(self.checkpoints, summary(self))


def summary(usage: Usage) -> Iterator[str]:
    """Say what all checkpoints take together."""
    holds = f" for checkpoints of {size_text(usage.logical_bytes)}" if usage.checkpoints else ""
    yield f"{size_text(usage.disk_bytes)} on the disk{holds}"
    if len(usage.bytes_by_user) > 1:
        of_each = sorted(usage.bytes_by_user.items(), key=lambda one: (-one[1], one[0]))
        yield "of it, by user: " + ", ".join(f"{size_text(nbytes)} of uid {uid}" for uid, nbytes in of_each)
    if usage.encoded_bytes:
        yield f"{size_text(usage.encoded_bytes)} of it is encoded: {size_text(usage.saved_bytes)} saved by compaction"
    if usage.elsewhere_bytes:
        yield f"{size_text(usage.elsewhere_bytes)} of these are elsewhere, at a remote"
    if usage.cached_bytes:
        yield f"{size_text(usage.cached_bytes)} more were fetched from there and are kept: ckstore gc removes them"
    if usage.shared_bytes:
        yield f"{size_text(usage.shared_bytes)} of it is in several checkpoints"
    if usage.unused_bytes:
        yield f"{size_text(usage.unused_bytes)} of it is unused: ckstore gc frees it"
    if usage.waiting_bytes:
        yield f"{size_text(usage.waiting_bytes)} of it was dropped, and waits to be brought back: ckstore undo lists it"
    if usage.dead_bytes:
        yield f"{size_text(usage.dead_bytes)} of it is dead: unused parts of blobs that are still needed"


def parts_of(nbytes: int, count: int) -> Iterator[int]:
    """Split a size into `count` parts that differ by a byte at most and add up to it."""
    part, left = divmod(nbytes, count)
    yield from (part + (index < left) for index in range(count))


@dataclass(frozen=True, slots=True)
class BlobUse:
    """How much of a blob one checkpoint uses."""

    used_bytes: int  # bytes of it in pieces of the checkpoint, with the alignment of pieces in packs
    is_pack: bool  # whether it holds other pieces than itself


def blob_uses(manifest: Manifest) -> dict[str, BlobUse]:
    """Return how much a checkpoint uses of each of its files, by digest; the same that the catalog keeps."""
    pieces: list[dict[str, int]] = [{} for _ in manifest.blobs]
    for storage in manifest.storages:
        for extent in storage.extents:
            pieces[extent.blob].setdefault(extent.piece, extent.length)
    uses = {}
    for blob, held in zip(manifest.blobs, pieces, strict=True):
        used_bytes = sum(-(-length // _ALIGNMENT) * _ALIGNMENT for length in held.values())
        is_pack = any(piece != blob.digest for piece in held)
        uses[blob.digest] = BlobUse(min(blob.nbytes, used_bytes), is_pack)
    return {blob.digest: uses.get(blob.digest, BlobUse(blob.nbytes, is_pack=False)) for blob in manifest.stored}


UseKind = Literal["plain", "encoded", "base"]


@brief()
@dataclass(frozen=True, slots=True)
class Use:
    """A checkpoint that uses a blob or a piece.

    Attributes:
        run, step: Which.
        names: The tensors and other values whose bytes are in it, all or a part.
        how: ``plain``: it has these bytes as they are. ``encoded``: it was compacted, and has them encoded, or they are
            such an encoded form. ``base``: of it only, what is decoded with them.
        nbytes, kept_bytes: Sizes of the blobs with these values: plain, and of the files that they are in.
        remotes: Where the bytes are, if the checkpoint does not have them here.
        id, superseded: As in `CheckpointUsage`.
    """

    run: str
    step: int
    names: tuple[str, ...]
    remotes: tuple[str, ...] = ()
    how: UseKind = "plain"
    nbytes: int = 0
    kept_bytes: int = 0
    id: str = ""
    superseded: bool = False

    @property
    def name(self) -> str:
        """``RUN@STEP``: the full ref of the checkpoint, unless it is superseded."""
        return f"{self.run}@{self.step}"

    @property
    def shown(self) -> str:
        """As `name`; of a superseded one with the first digits of its id."""
        return shown_name(self.name, self.id, superseded=self.superseded)

    def __str__(self) -> str:
        at = f" (elsewhere, at {' and '.join(self.remotes)})" if self.remotes else ""
        names = some_of([named(name) for name in self.names] or [DEAD_PART])
        return printable(f"{self.shown}{at}: {names}{f' ({self.words})' if self.words else ''}")

    @property
    def words(self) -> str:
        """How the bytes are there, in words; empty if they are plain."""
        sizes = f"{size_text(self.kept_bytes)} kept of {size_text(self.nbytes)}"
        return {"plain": "", "encoded": f"encoded, {sizes}", "base": f"decoded with it, {sizes}"}[self.how]
