"""What checkpoints take on the disk, and what dropping one would free. Sizes are bytes of blobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.model.brief import brief
from ckstore.model.sizes import size_text
from ckstore.model.words import in_lines, named, printable, some_of

if TYPE_CHECKING:
    from ckstore.model.manifest.manifest import Manifest

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
        unique_bytes: Blobs that only this checkpoint has: dropping it, and a gc, frees them, unless
            a process has them open.
        shared_bytes: Blobs that others have too: other checkpoints, a save in flight, names outside the store.
        dead_bytes: The part of its packs that is dead, at most: what lies in them beyond the most that any single
            checkpoint uses.
    """

    run: str
    step: int
    logical_bytes: int
    unique_bytes: int
    shared_bytes: int
    dead_bytes: int

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    def __str__(self) -> str:
        holds, frees, shares = map(size_text, (self.logical_bytes, self.unique_bytes, self.shared_bytes))
        return printable(f"{self.name} holds {holds}, frees {frees}, shares {shares}")


@brief()
@dataclass(frozen=True, slots=True)
class Usage:
    """What the checkpoints of a store take.

    Attributes:
        checkpoints: One for each complete checkpoint, in the order of their commits.
        logical_bytes: Sum over all of them: what they would take without a store.
        disk_bytes: Blobs on disk, each file once; the sum of the next three.
        unique_bytes: Blobs that a single checkpoint has.
        shared_bytes: Blobs that several have, each once.
        unused_bytes: Blobs that no checkpoint has; gc frees them.
        dead_bytes: The part of all packs that is dead, each pack once; see `CheckpointUsage`.
        saved_bytes: By how much compaction made blobs smaller: those that are encoded, and nowhere plain any more.
    """

    checkpoints: tuple[CheckpointUsage, ...]
    logical_bytes: int
    disk_bytes: int
    unique_bytes: int
    shared_bytes: int
    unused_bytes: int
    dead_bytes: int
    saved_bytes: int = 0

    def __str__(self) -> str:
        return in_lines(self.checkpoints, summary(self))


def summary(usage: Usage) -> Iterator[str]:
    """Say what all checkpoints take together."""
    holds = f" for checkpoints of {size_text(usage.logical_bytes)}" if usage.checkpoints else ""
    yield f"{size_text(usage.disk_bytes)} on the disk{holds}"
    if usage.saved_bytes:
        yield f"{size_text(usage.saved_bytes)} more without compaction"
    if usage.shared_bytes:
        yield f"{size_text(usage.shared_bytes)} of it is shared"
    if usage.unused_bytes:
        yield f"{size_text(usage.unused_bytes)} of it is unused: ckstore gc frees it"
    if usage.dead_bytes:
        yield f"{size_text(usage.dead_bytes)} of it is dead: unused parts of blobs that are still needed"


@dataclass(frozen=True, slots=True)
class BlobUse:
    """How much of a blob one checkpoint uses.

    Attributes:
        used_bytes: Bytes of it in pieces of the checkpoint, with the alignment of pieces in packs.
        is_pack: Whether it holds other pieces than itself.
    """

    used_bytes: int
    is_pack: bool


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


@brief()
@dataclass(frozen=True, slots=True)
class Use:
    """A checkpoint that uses a blob or a piece.

    Attributes:
        run, step: Which.
        names: The tensors and other values whose bytes are in it, all or a part.
    """

    run: str
    step: int
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The full ref, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    def __str__(self) -> str:
        return printable(f"{self.name}: {some_of([named(name) for name in self.names] or [DEAD_PART])}")
