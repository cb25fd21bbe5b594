"""What a checkpoint is: the values of ``manifest.json``. Source: docs/format/v1.md, "A checkpoint"."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ckstore.model.canonical import canonical_json, encode_metric

if TYPE_CHECKING:
    from ckstore.model.digest import Algorithm

MANIFEST_VERSION = 1
MANIFEST_MAX_BYTES = 512 * 2**20
MAX_DEPTH = 100

MODE_MOST = 0o777
FileKind = Literal["file", "directory", "symlink"]
LeafKind = Literal["torch", "numpy", "bytes", "str"]
Node = Any
"""A node of the state as JSON values; docs/format/v1.md, "Nodes"."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one piece is.

    Attributes:
        piece: Digest of the piece.
        blob: Index into the manifest's `blobs`.
        offset: Bytes from the start of the blob.
        length: Bytes, at least 1.
    """

    piece: str
    blob: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """A row of `nbytes` bytes: the concatenation of its extents."""

    nbytes: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class LeafRecord:
    """One value that is kept as bytes.

    Attributes:
        name: Path in the state, ``model.layers[0].weight``.
        kind: ``torch``, ``numpy``, ``bytes`` or ``str``.
        dtype: ``float32`` or, for NumPy, ``<f4``; empty for bytes and str.
        shape: Sizes, outermost first; empty for a scalar, bytes and str.
        storage: Index into the manifest's `storages`.
        offset: Bytes from the start of the storage to the first element.
        strides: Elements, one for each dimension; None: row-major contiguous.
    """

    name: str
    kind: LeafKind
    dtype: str
    shape: tuple[int, ...]
    storage: int
    offset: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A committed file, directory or symlink.

    Attributes:
        path: Relative, with slashes, as `model.paths.check_path` approves it.
        kind: ``file``, ``directory`` or ``symlink``.
        mode: Permission bits, at most 0o777; 0 for a symlink.
        storages: Indexes into the manifest's `storages`, whose bytes one after another are the content of a file.
        target: What a symlink holds; empty for the others.
        mtime_ns: Modification time since 1970, if it was asked to be kept.
    """

    path: str
    kind: FileKind
    mode: int = 0
    storages: tuple[int, ...] = ()
    target: str = ""
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class BlobRecord:
    """A blob that a checkpoint needs: its digest and its size in bytes."""

    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Description:
    """What the caller says about a checkpoint; all of it is checked and plain JSON (`model.describe`)."""

    metrics: dict[str, int | float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``; see docs/format/v1.md for each member."""

    run: str
    step: int
    sequence: int
    created: str
    writer: str
    description: Description
    logical_bytes: int
    new_bytes: int
    reused_bytes: int
    content: str
    blobs: tuple[BlobRecord, ...]
    storages: tuple[StorageRecord, ...]
    leaves: tuple[LeafRecord, ...]
    state: Node
    files: tuple[FileRecord, ...] = ()


def file_json(file: FileRecord) -> dict[str, Any]:
    """Return the JSON object of a committed file."""
    out: dict[str, Any] = {"path": file.path, "kind": file.kind}
    if file.kind == "symlink":
        out["target"] = file.target
    else:
        out["mode"] = file.mode
    if file.kind == "file":
        out["storages"] = list(file.storages)
    if file.mtime_ns is not None:
        out["mtime"] = str(file.mtime_ns)
    return out


def leaf_json(leaf: LeafRecord) -> dict[str, Any]:
    """Return the JSON object of a leaf; members that have their default are left out."""
    out: dict[str, Any] = {"name": leaf.name, "kind": leaf.kind, "storage": leaf.storage}
    if leaf.kind in ("torch", "numpy"):
        out["dtype"] = leaf.dtype
        out["shape"] = list(leaf.shape)
        if leaf.strides is not None:
            out["strides"] = list(leaf.strides)
    if leaf.offset:
        out["offset"] = leaf.offset
    return out


def content_digest(
    leaves: tuple[LeafRecord, ...],
    state: Node,
    storages: tuple[StorageRecord, ...],
    algorithm: Algorithm,
    files: tuple[FileRecord, ...] = (),
) -> str:
    """Return the digest that says whether two checkpoints hold the same (docs/format/v1.md, "content")."""
    held: dict[str, Any] = {
        "leaves": [leaf_json(leaf) for leaf in leaves],
        "state": state,
        "storages": [[s.nbytes, [[e.piece, e.length] for e in s.extents]] for s in storages],
    }
    if files:
        held["files"] = [file_json(replace(file, mtime_ns=None)) for file in files]
    return algorithm.digest(canonical_json(held))


def render(manifest: Manifest, algorithm: Algorithm) -> tuple[str, bytes]:
    """Return the id of the manifest and the bytes of ``manifest.json``."""
    about = manifest.description
    members: dict[str, Any] = {
        "format": "ckstore-manifest",
        "version": MANIFEST_VERSION,
        "run": manifest.run,
        "step": manifest.step,
        "sequence": manifest.sequence,
        "created": manifest.created,
        "writer": manifest.writer,
        "parent": about.parent,
        "message": about.message,
        "metrics": {name: encode_metric(value) for name, value in about.metrics.items()},
        "metadata": about.metadata,
        "logical_bytes": manifest.logical_bytes,
        "new_bytes": manifest.new_bytes,
        "reused_bytes": manifest.reused_bytes,
        "content": manifest.content,
        "blobs": [[blob.digest, blob.nbytes] for blob in manifest.blobs],
        "storages": [[s.nbytes, [[e.piece, e.blob, e.offset, e.length] for e in s.extents]] for s in manifest.storages],
        "leaves": [leaf_json(leaf) for leaf in manifest.leaves],
        "state": manifest.state,
    }
    if manifest.files:
        members["files"] = [file_json(file) for file in manifest.files]
    body = canonical_json(members)
    digest = algorithm.digest(body)
    return digest, b'{"digest":"' + digest.encode("ascii") + b'","manifest":' + body + b"}\n"
