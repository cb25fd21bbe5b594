"""Checkpoints made by hand, small enough to be drawn by Hypothesis."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ckstore.catalog import Catalog
from ckstore.model.manifest.info import Published, Stamp
from ckstore.model.manifest.manifest import (
    BlobRecord,
    Description,
    Extent,
    LeafRecord,
    Manifest,
    StorageRecord,
)
from ckstore.model.names import CheckpointKey

Key = CheckpointKey
SOON_S = 10.0
PIECE_BYTES = 128
PIECES_A_PACK = 4


def digest_of(text: str) -> str:
    return f"xxh3-{hashlib.md5(text.encode('utf-8', 'surrogatepass'), usedforsecurity=False).hexdigest()}"


def pack_of(number: int) -> str:
    """Pack `number` holds the pieces `piece_of(number, 0)` to `piece_of(number, PIECES_A_PACK - 1)`."""
    return digest_of(f"pack {number}")


def piece_of(pack: int, index: int) -> str:
    return digest_of(f"piece {pack}.{index}")


def chunk_of(number: int) -> str:
    """A blob that is one piece."""
    return digest_of(f"chunk {number}")


def at(run: str, step: int, digit: str = "0") -> Key:
    """Return the key of a checkpoint of a step; another hexadecimal digit stands for another id."""
    return CheckpointKey(run, step, f"{step}.{digit * 10}")


def published(
    run: str,
    step: int,
    directory: str = "",
    *,
    sequence: int = 1,
    pieces: Sequence[tuple[int, int]] = (),
    chunks: Sequence[int] = (),
    texts: Mapping[str, int] | None = None,
    description: Description | None = None,
    inode: int = 1,
    name_prefix: str = "w",
) -> Published:
    """Return a checkpoint with a tensor for each piece (pack, index) and each chunk, and texts of given sizes.

    Without a name of its directory it is that of `at`.
    """
    blobs: dict[str, int] = {}
    storages: list[StorageRecord] = []
    leaves: list[LeafRecord] = []

    def add(name: str, piece: str, blob: BlobRecord, offset: int = 0, length: int | None = None) -> None:
        blobs.setdefault(blob.digest, blob.nbytes)
        at = list(blobs).index(blob.digest)
        length = blob.nbytes if length is None else length
        storages.append(StorageRecord(length, (Extent(piece, at, offset, length),)))
        leaves.append(LeafRecord(name, "torch", "uint8", (length,), len(storages) - 1))

    for n, (pack, index) in enumerate(pieces):
        blob = BlobRecord(pack_of(pack), PIECE_BYTES * PIECES_A_PACK)
        add(f"{name_prefix}[{n}]", piece_of(pack, index), blob, index * PIECE_BYTES, PIECE_BYTES)
    for n, chunk in enumerate(chunks):
        add(f"chunk{n}", chunk_of(chunk), BlobRecord(chunk_of(chunk), 1000 + chunk))
    for name, nbytes in (texts or {}).items():
        text = digest_of(f"text {name} {nbytes}")
        add(name, text, BlobRecord(text, nbytes))
        leaves[-1] = LeafRecord(name, "str", "", (), len(storages) - 1)
    manifest = Manifest(
        run=run,
        step=step,
        sequence=sequence,
        created=f"2026-11-21T09:30:{sequence % 60:02}.000000Z",
        writer="ckstore test",
        description=description or Description(),
        logical_bytes=sum(storage.nbytes for storage in storages),
        new_bytes=0,
        reused_bytes=0,
        content=digest_of(f"content {pieces} {chunks} {texts}"),
        blobs=tuple(BlobRecord(digest, nbytes) for digest, nbytes in blobs.items()),
        storages=tuple(storages),
        leaves=tuple(leaves),
        state=None,
    )
    key = CheckpointKey(run, step, directory) if directory else at(run, step)
    return Published(manifest, digest_of(repr(manifest)), key, stamp_of(inode))


def stamp_of(inode: int) -> Stamp:
    """Return the stamp of a directory with this inode number."""
    return Stamp(inode, inode, 10**18, 2**64 - 1 - inode % 1000)


@dataclass
class Directories:
    """What the directories of a store would say: key -> checkpoint, and the tags."""

    there: dict[Key, Published] = field(default_factory=dict)
    tags: dict[str, Key] = field(default_factory=dict)
    looks: list[Key] = field(default_factory=list)

    def look(self, key: Key) -> Published | None:
        self.looks.append(key)
        return self.there.get(key)

    def put(self, *checkpoints: Published) -> None:
        for checkpoint in checkpoints:
            self.there[checkpoint.key] = checkpoint

    def catalogue(self, catalog: Catalog) -> None:
        """Reconcile everything that either side knows."""
        known = catalog.listing().keys() | self.there.keys()
        catalog.reconcile(sorted(known), self.look, timeout_s=SOON_S, tags=lambda: self.tags)

    def reference_counts(self) -> dict[str, int]:
        """Count the manifests that name each blob."""
        named = [blob.digest for found in self.there.values() for blob in found.manifest.blobs]
        return {digest: named.count(digest) for digest in named}

    def used_bytes(self) -> dict[tuple[Key, str], int]:
        """Add up, for each checkpoint and blob, the distinct pieces, aligned as in packs."""
        sums: dict[tuple[Key, str], int] = {}
        for key, found in self.there.items():
            blobs = found.manifest.blobs
            pieces = {(blobs[e.blob], e.piece, e.length) for s in found.manifest.storages for e in s.extents}
            for blob, _, length in pieces:
                sums[key, blob.digest] = sums.get((key, blob.digest), 0) + math.ceil(length / 64) * 64
            for blob in blobs:
                sums[key, blob.digest] = min(blob.nbytes, sums[key, blob.digest])
        return sums


def new_catalog(root: Path) -> Catalog:
    """Return the catalog of a new store at `root`, which is made."""
    root.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(root)
    catalog.create_or_migrate(timeout_s=SOON_S)
    return catalog
