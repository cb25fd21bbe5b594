"""Disk usage of checkpoints, in bytes of blobs, and the space that dropping a checkpoint would free."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from ckstore.model.brief import brief
from ckstore.model.manifest.info import CheckpointInfo, shown_name
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, in_lines, named, printable, some_of

_ALIGNMENT = 64
DEAD_PART = "(no tensor: nothing uses this part any more)"
"""Shown instead of names if no tensor of a checkpoint uses a blob."""


@brief()
@dataclass(frozen=True, slots=True)
class CheckpointUsage:
    """Disk usage of one checkpoint.

    Attributes:
        run, step: Run and step of the checkpoint.
        logical_bytes: Size of a copy of the checkpoint without any sharing.
        alone_bytes: Blobs that only this checkpoint has. If it is dropped, gc frees them, unless a process has them
            open.
        shared_bytes: Its share of the blobs that it has in common with other checkpoints, a save in progress, or names
            outside the store. If three checkpoints have a blob, a third of the blob counts for each of them, so the
            shares add up.
        dead_bytes: Upper bound of the bytes in its packs that no checkpoint uses (the dead bytes). The bound for a pack
            is its size minus the largest number of bytes that a single checkpoint uses.
        packed_bytes: Number of bytes that become dead when the checkpoint is dropped. These are the bytes that only
            this checkpoint uses, in packs that other checkpoints also use.
        id: Id of the checkpoint.
        superseded: Whether its step has a newer checkpoint. If so, ``RUN@STEP`` names the newer checkpoint.
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
        """The `name`, followed by the first digits of its id if it is superseded."""
        return shown_name(self.name, self.id, superseded=self.superseded)

    def __str__(self) -> str:
        logical, alone, part = map(size_text, (self.logical_bytes, self.alone_bytes, self.shared_bytes))
        return printable(f"{self.shown} holds {logical}: {alone} alone, {part} as its part of shared blobs")


@brief("run", "checkpoint_count", "logical_bytes", "alone_bytes", "shared_bytes")
@dataclass(frozen=True, slots=True)
class RunUsage:
    """Disk usage of the checkpoints of one run.

    Attributes:
        run: Name of the run.
        checkpoint_count: Number of complete checkpoints of the run.
        logical_bytes: Total size of copies of these checkpoints without any sharing.
        alone_bytes: Blobs that only this run has. If the whole run is dropped, gc frees them.
        shared_bytes: The run's share of the blobs that other runs also have, summed over its checkpoints.
        checkpoints: Usage of each checkpoint, in the order of their commits.
        packed_bytes: Number of bytes that become dead (see `CheckpointUsage`) when the whole run is dropped.
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
        logical, alone, part = map(size_text, (self.logical_bytes, self.alone_bytes, self.shared_bytes))
        return printable(f"{self.run}: {count} of {logical}, {alone} alone, {part} as its part of shared blobs")


@brief()
@dataclass(frozen=True, slots=True)
class Usage:
    """Disk usage of the checkpoints of a store.

    The `alone_bytes` and the `shared_bytes` of all checkpoints add up to the values here. For runs, only the sum of
    both fields adds up, because several checkpoints of one run may share a blob.

    Attributes:
        runs: Usage of each run, beginning with the run that has the most `alone_bytes`.
        checkpoints: Usage of each complete checkpoint, in the order of their commits.
        logical_bytes: Sum over all checkpoints, which is their size without a store.
        disk_bytes: Blobs on disk, counting each file once. This is the sum of the next four fields.
        alone_bytes: Blobs that a single checkpoint has.
        shared_bytes: Blobs that several checkpoints have, counting each blob once.
        unused_bytes: Blobs that no checkpoint has, which gc frees.
        waiting_bytes: Blobs that only dropped checkpoints (`Store.undoable`) have. They are freed later.
        dead_bytes: The dead bytes of all packs, as defined in `CheckpointUsage`, counting each pack once.
        saved_bytes: Bytes that compaction saved on blobs that are now only stored in encoded form.
        encoded_bytes: The part of `disk_bytes` in encoded forms of blobs.
        cached_bytes: Downloaded bytes of remote checkpoints in the cache. They are not part of `disk_bytes`.
        elsewhere_bytes: The part of `logical_bytes` in checkpoints with bytes that only a remote has.
        bytes_by_user: User id -> the part of `disk_bytes` in files of that user. Only this user or root can free it.
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


class SizeFields(TypedDict):
    """The fields of `Usage` that are sums over its checkpoints."""

    logical_bytes: int
    elsewhere_bytes: int


def sizes_of(infos: Collection[CheckpointInfo]) -> SizeFields:
    """Return the total size of checkpoints, and of those checkpoints with bytes that only a remote has."""
    return {
        "logical_bytes": sum(info.logical_bytes for info in infos),
        "elsewhere_bytes": sum(info.logical_bytes for info in infos if info.elsewhere),
    }


def summary(usage: Usage) -> Iterator[str]:
    """Yield lines on the disk usage of all checkpoints together."""
    holds = f" for checkpoints of {size_text(usage.logical_bytes)}" if usage.checkpoints else ""
    yield f"{size_text(usage.disk_bytes)} on the disk{holds}"
    if len(usage.bytes_by_user) > 1:
        of_each = sorted(usage.bytes_by_user.items(), key=lambda one: (-one[1], one[0]))
        yield "of it, by user: " + ", ".join(f"{size_text(nbytes)} of uid {uid}" for uid, nbytes in of_each)
    if usage.encoded_bytes:
        yield f"{size_text(usage.encoded_bytes)} of it is encoded: {size_text(usage.saved_bytes)} saved by compaction"
    if usage.elsewhere_bytes:
        yield f"{size_text(usage.elsewhere_bytes)} of these are only on a remote"
    if usage.cached_bytes:
        yield f"{size_text(usage.cached_bytes)} more were fetched from remotes and are cached: ckstore gc deletes them"
    if usage.shared_bytes:
        yield f"{size_text(usage.shared_bytes)} of it is in several checkpoints"
    if usage.unused_bytes:
        yield f"{size_text(usage.unused_bytes)} of it is unused: ckstore gc frees it"
    if usage.waiting_bytes:
        yield f"{size_text(usage.waiting_bytes)} of it is in dropped checkpoints: ckstore undo lists them"
    if usage.dead_bytes:
        yield f"{size_text(usage.dead_bytes)} of it is dead: unused parts of blobs that are still needed"


def parts_of(nbytes: int, count: int) -> Iterator[int]:
    """Split a size into `count` parts that differ by a byte at most and add up to it."""
    part, left = divmod(nbytes, count)
    yield from (part + (index < left) for index in range(count))


@dataclass(frozen=True, slots=True)
class BlobUse:
    """How much of a blob one checkpoint uses."""

    used_bytes: int  # bytes in pieces of the checkpoint, including the padding that aligns pieces in packs
    is_pack: bool  # whether the blob contains pieces whose digests differ from the digest of the blob


def blob_uses(manifest: Manifest) -> dict[str, BlobUse]:
    """Return how much of each of its files a checkpoint uses, by digest; the catalog stores the same numbers."""
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
        run, step: Run and step of the checkpoint.
        names: The tensors and other values with all or some of their bytes in the blob or piece.
        how: ``plain`` if the checkpoint has the bytes in plain form. ``encoded`` if it has the bytes in encoded form,
            or if the bytes themselves are an encoded form. ``base`` if it needs the bytes only to decode other blobs.
        nbytes, kept_bytes: Plain size of the blobs with these values, and size of the files that contain these blobs.
        remotes: The remotes that have the bytes, if the checkpoint does not have them locally.
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
        """The `name`, followed by the first digits of its id if it is superseded."""
        return shown_name(self.name, self.id, superseded=self.superseded)

    def __str__(self) -> str:
        names = some_of([named(name) for name in self.names] or [DEAD_PART])
        return printable(f"{self.place}: {names}{f' ({self.words})' if self.words else ''}")

    @property
    def place(self) -> str:
        """The name as in `shown`, followed by the remotes that have the bytes if they are not stored locally."""
        remotes = f"the remote{'s' if len(self.remotes) > 1 else ''} {' and '.join(self.remotes)}"
        return printable(f"{self.shown} (only on {remotes})") if self.remotes else self.shown

    @property
    def words(self) -> str:
        """Text on how the bytes are stored, which is empty if they are plain."""
        sizes = f"{size_text(self.kept_bytes)} kept of {size_text(self.nbytes)}"
        return {"plain": "", "encoded": f"encoded, {sizes}", "base": f"decoded with it, {sizes}"}[self.how]
