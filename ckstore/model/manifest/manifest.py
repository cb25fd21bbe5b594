"""The manifest of a checkpoint, the values of ``manifest.json``. Source: docs/format/v1.md, "A checkpoint".

Types with tens of thousands of instances are named tuples, because creating a frozen dataclass takes four times as
long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from ckstore.model.canonical import canonical_text, encode_metric, object_of, quoted
from ckstore.model.digest import Algorithm
from ckstore.model.manifest.health import Health
from ckstore.model.manifest.ranks import DcpValue, RankRecord
from ckstore.model.manifest.stored import BLOB_MAX_BYTES as BLOB_MAX_BYTES  # noqa: PLC0414 - also exported here
from ckstore.model.manifest.stored import PLAIN_FORM, StoredForm
from ckstore.model.manifest.stored import BlobRecord as BlobRecord  # noqa: PLC0414 - the same
from ckstore.model.manifest.tensor_cuts import Block, Sizes

MANIFEST_FORMAT, MANIFEST_VERSION = "ckstore-manifest", 1
SHARDS = "shards"
KNOWN_REQUIRES = (SHARDS,)
"""The features that a manifest may require of its readers. ``shards`` stands for extents of any length, and for
storages that are assembled from blocks."""
# The size is limited because parsing takes several times the memory of the text.
MANIFEST_MAX_BYTES = 512 * 2**20
NAMES_MOST_CHARS, NAMES_MOST_TIMES = 2**27, 64
"""The maximum total number of characters in the paths of all values of a state, and the number by which each byte of
the manifest raises this maximum. The total is limited because a comparison and an export write out all paths."""
MAX_ELEMENTS = 2**63
"""The limit of torch for elements, and of NumPy for bytes. The product of the nonzero sizes of a shape is smaller."""

MODE_MOST = 0o777
FileKind = Literal["file", "directory", "symlink"]
LeafKind = Literal["torch", "numpy", "numbers", "bytes", "bytearray", "io.BytesIO", "str"]
Node = Any  # A node of the state as JSON values; docs/format/v1.md, "Nodes"


class Extent(NamedTuple):
    """The location of one piece in a blob."""

    piece: str  # digest of the piece
    blob: int  # index into the manifest's `blobs`
    offset: int  # bytes from the start of the blob
    length: int  # bytes, at least 1


class Tiling(NamedTuple):
    """The arrangement of the extents in a storage that is not the concatenation of its extents."""

    shape: Sizes  # sizes of the row-major tensor in the storage, the last dimension in bytes
    blocks: tuple[Block, ...]  # the part of the tensor in each extent; each part is row-major


class StorageRecord(NamedTuple):
    """A sequence of `nbytes` bytes, which is the concatenation of its extents unless it has a tiling."""

    nbytes: int
    extents: tuple[Extent, ...]
    tiling: Tiling | None = None


class LeafRecord(NamedTuple):
    """One value that is stored as bytes."""

    name: str  # path in the state, ``model.layers[0].weight``
    # ``torch``, ``numpy``, ``numbers`` (a long list of numbers), ``bytes``, ``bytearray``, ``io.BytesIO`` or ``str``.
    kind: LeafKind
    dtype: str  # ``float32`` or, for NumPy, ``<f4``; empty for bytes and str
    shape: tuple[int, ...]  # sizes, outermost first; empty for a scalar, bytes and str
    storage: int  # index into the manifest's `storages`
    offset: int = 0  # bytes from the start of the storage to the first element
    strides: tuple[int, ...] | None = None  # in elements, one for each dimension; None if row-major contiguous


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A committed file, directory or symlink."""

    path: str  # relative path with slashes that `model.names.check_path` accepts
    kind: FileKind  # ``file``, ``directory`` or ``symlink``
    mode: int = 0  # permission bits, at most 0o777; 0 for a symlink
    # Indexes into the manifest's `storages`. The content of a file is the concatenation of these storages.
    storages: tuple[int, ...] = ()
    target: str = ""  # target of a symlink; empty for the other kinds
    mtime_ns: int | None = None  # modification time since 1970, if the caller asked to keep it


@dataclass(frozen=True, slots=True)
class Description:
    """The caller's description of a checkpoint, checked and in plain JSON (`model/manifest/describe`)."""

    metrics: dict[str, int | float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``; see docs/format/v1.md for each member.

    `form` is not part of the file. It describes the files from which the blobs of the checkpoint are read.
    """

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
    ranks: RankRecord | None = None
    form: StoredForm = PLAIN_FORM
    health: Health | None = None  # None if no values were counted
    training: str = ""  # id of its training; empty if an older ckstore saved the checkpoint

    @property
    def stored(self) -> tuple[BlobRecord, ...]:
        """The files in its directory: its blobs, or the files from which a compacted checkpoint is decoded."""
        return self.blobs if self.form.is_plain else tuple(self.form.stored(self.blobs))

    @property
    def kept_bytes(self) -> int:
        """Total size of the files that contain its blobs, counting each file once."""
        if self.form.is_plain:
            return sum(blob.nbytes for blob in self.blobs)
        sizes = dict(self.stored)
        return sum(sizes[name] for name in {self.form.file_of(blob.digest) for blob in self.blobs})

    @property
    def places(self) -> list[int | None]:
        """For each blob, the index of its file in `stored`, or None if no file contains its plain bytes."""
        numbers = {file.digest: number for number, file in enumerate(self.stored)}
        return [numbers.get(blob.digest) for blob in self.blobs]

    @property
    def world_size(self) -> int:
        """The number of processes that saved the checkpoint."""
        return 1 if self.ranks is None else self.ranks.world_size

    @property
    def dcp_values(self) -> tuple[DcpValue, ...] | None:
        """The values that `torch.distributed.checkpoint` saved, or None if it did not save the checkpoint."""
        return None if self.ranks is None else self.ranks.entries

    def files_of(self, blob: int) -> list[str]:
        """Return the digests of all files that are needed to read the blob with the index `blob`."""
        return self.form.files_of(self.blobs[blob].digest)

    @property
    def name(self) -> str:
        """The full ref of the checkpoint, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    @property
    def requires(self) -> tuple[str, ...]:
        """The features that a reader must support, from `KNOWN_REQUIRES`."""
        return (SHARDS,) if any(map(_is_of_shards, self.storages)) else ()


EXTENT_GRAIN_BYTES = 2**20
"""Without ``shards``, the length of each extent of a storage except the last is a multiple of this number of bytes.

This allows mapping the extents contiguously.
"""


def _is_of_shards(storage: StorageRecord) -> bool:
    if len(storage.extents) < 2:  # this is the case for nearly all storages
        return storage.tiling is not None
    lengths = [extent.length for extent in storage.extents[:-1]]
    return storage.tiling is not None or any(length % EXTENT_GRAIN_BYTES for length in lengths)


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


def leaf_text(leaf: LeafRecord) -> str:
    """Return the canonical JSON of a leaf, without members that have their default value.

    The text is assembled without a dict, because a state has tens of thousands of leaves.
    """
    array = leaf.kind in ("torch", "numpy", "numbers")
    dtype = f'"dtype":{quoted(leaf.dtype)},' if array else ""
    offset = f',"offset":{leaf.offset}' if leaf.offset else ""
    shape = f',"shape":{_numbers(leaf.shape)}' if array else ""
    strides = f',"strides":{_numbers(leaf.strides)}' if array and leaf.strides is not None else ""
    head = f'{{{dtype}"kind":{quoted(leaf.kind)},"name":{quoted(leaf.name)}'
    return f'{head}{offset}{shape},"storage":{leaf.storage}{strides}}}'


def _numbers(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _list_of(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"


@dataclass(frozen=True, slots=True)
class StateTexts:
    """The canonical JSON of leaves and of a state, created once for both the content digest and the manifest."""

    leaves: str
    state: str

    @classmethod
    def of(cls, leaves: Iterable[LeafRecord], state: Node) -> StateTexts:
        """Return the texts of leaves and of a state."""
        return cls(_list_of(map(leaf_text, leaves)), canonical_text(state))


def content_digest(
    texts: StateTexts, storages: Iterable[StorageRecord], algorithm: Algorithm, files: tuple[FileRecord, ...] = ()
) -> str:
    """Return the digest that is equal for checkpoints with the same content (docs/format/v1.md, "content")."""
    members = {
        "leaves": texts.leaves,
        "state": texts.state,
        "storages": _list_of(
            [
                f"[{s.nbytes},{_list_of([f'[{quoted(e.piece)},{e.length}]' for e in s.extents])}"
                f"{'' if s.tiling is None else _tiling_text(s.tiling)}]"
                for s in storages
            ]
        ),
    }
    if files:
        # Times are excluded, so that a copied and recommitted directory has the same content.
        members["files"] = canonical_text([file_json(replace(file, mtime_ns=None)) for file in files])
    return algorithm.digest(object_of(members))


def render(manifest: Manifest, algorithm: Algorithm, texts: StateTexts | None = None) -> tuple[str, bytes]:
    """Return the id of the manifest and the bytes of ``manifest.json``.

    `texts` are the texts of the leaves and the state of the manifest, if they have already been created.
    """
    texts = texts or StateTexts.of(manifest.leaves, manifest.state)
    about = manifest.description
    plain: dict[str, Any] = {
        "format": MANIFEST_FORMAT,
        "version": MANIFEST_VERSION,
        "run": manifest.run,
        "step": manifest.step,
        "sequence": manifest.sequence,
        "created": manifest.created,
        "writer": manifest.writer,
        "parent": about.parent,
        **({"training": manifest.training} if manifest.training else {}),
        "message": about.message,
        "metrics": {name: encode_metric(value) for name, value in about.metrics.items()},
        "metadata": about.metadata,
        "logical_bytes": manifest.logical_bytes,
        "new_bytes": manifest.new_bytes,
        "reused_bytes": manifest.reused_bytes,
        "content": manifest.content,
        "blobs": [[blob.digest, blob.nbytes] for blob in manifest.blobs],
    }
    if manifest.files:
        plain["files"] = [file_json(file) for file in manifest.files]
    if requires := manifest.requires:
        plain["requires"] = list(requires)
    if manifest.ranks is not None:
        plain["ranks"] = manifest.ranks.to_json()
    if manifest.health is not None:
        plain["health"] = manifest.health.to_json()
    members = {name: canonical_text(value) for name, value in plain.items()}
    members |= {"leaves": texts.leaves, "state": texts.state, "storages": _storages_text(manifest.storages)}
    body = object_of(members)
    # Hash exactly the written bytes, so that a reader can hash them without a canonical form.
    digest = algorithm.digest(body)
    return digest, b'{"digest":"' + digest.encode("ascii") + b'","manifest":' + body + b"}\n"


def _storages_text(storages: Iterable[StorageRecord]) -> str:
    return _list_of(
        [
            f"[{s.nbytes},{_list_of([f'[{quoted(e.piece)},{e.blob},{e.offset},{e.length}]' for e in s.extents])}"
            f"{'' if s.tiling is None else _tiling_text(s.tiling)}]"
            for s in storages
        ]
    )


def _tiling_text(tiling: Tiling) -> str:
    shape, blocks = tiling
    return f",[{_numbers(shape)},{_list_of(f'[{_numbers(b.offsets)},{_numbers(b.sizes)}]' for b in blocks)}]"
