"""What a checkpoint is: the values of ``manifest.json``. Source: docs/format/v1.md, "A checkpoint".

What there are tens of thousands of is a named tuple: a frozen dataclass takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from ckstore.model.canonical import canonical_text, encode_metric, object_of, quoted
from ckstore.model.digest import Algorithm
from ckstore.model.manifest.health import Health
from ckstore.model.manifest.stored import BLOB_MAX_BYTES as BLOB_MAX_BYTES  # noqa: PLC0414 - a name of here, too
from ckstore.model.manifest.stored import BlobRecord as BlobRecord  # noqa: PLC0414 - the same
from ckstore.model.manifest.stored import Encoding
from ckstore.model.manifest.tensor_cuts import Block, Sizes

MANIFEST_FORMAT, MANIFEST_VERSION = "ckstore-manifest", 1
SHARDS = "shards"
KNOWN_REQUIRES = (SHARDS,)
"""What a manifest may ask of its readers. ``shards``: extents of any length, and storages that are put together of
blocks."""
# Parsing takes several times the memory of the text.
MANIFEST_MAX_BYTES = 512 * 2**20
# Three levels of JSON each: with its frame a state stays below `document.MAX_LEVELS`.
MAX_DEPTH = 100
NAMES_MOST_CHARS, NAMES_MOST_TIMES = 2**27, 64
"""The paths to all values of a state have together at most so many characters, and so many more for each byte of the
manifest: a comparison and an export write them out."""
MAX_ELEMENTS = 2**63
"""What torch counts elements in, and NumPy bytes; the product of the sizes that are not 0 stays below."""

MODE_MOST = 0o777
FileKind = Literal["file", "directory", "symlink"]
LeafKind = Literal["torch", "numpy", "numbers", "bytes", "bytearray", "io.BytesIO", "str"]
Node = Any  # A node of the state as JSON values; docs/format/v1.md, "Nodes"


class Extent(NamedTuple):
    """Where one piece is."""

    piece: str  # digest of the piece
    blob: int  # index into the manifest's `blobs`
    offset: int  # bytes from the start of the blob
    length: int  # bytes, at least 1


class Tiling(NamedTuple):
    """How the extents of a storage make its bytes where they do not follow one another."""

    shape: Sizes  # of the tensor that the storage is, row-major, the last dimension in bytes
    blocks: tuple[Block, ...]  # for each extent which part of the tensor it is; each is row-major itself


class StorageRecord(NamedTuple):
    """A row of `nbytes` bytes: the concatenation of its extents, or, with a tiling, put together of them."""

    nbytes: int
    extents: tuple[Extent, ...]
    tiling: Tiling | None = None


class LeafRecord(NamedTuple):
    """One value that is kept as bytes."""

    name: str  # path in the state, ``model.layers[0].weight``
    # ``torch``, ``numpy``, ``numbers`` (a long list of them), ``bytes``, ``bytearray``, ``io.BytesIO`` or ``str``.
    kind: LeafKind
    dtype: str  # ``float32`` or, for NumPy, ``<f4``; empty for bytes and str
    shape: tuple[int, ...]  # sizes, outermost first; empty for a scalar, bytes and str
    storage: int  # index into the manifest's `storages`
    offset: int = 0  # bytes from the start of the storage to the first element
    strides: tuple[int, ...] | None = None  # elements, one for each dimension; None: row-major contiguous


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A committed file, directory or symlink."""

    path: str  # relative, with slashes, as `model.names.check_path` approves it
    kind: FileKind  # ``file``, ``directory`` or ``symlink``
    mode: int = 0  # permission bits, at most 0o777; 0 for a symlink
    # Indexes into the manifest's `storages`, whose bytes one after another are the content of a file.
    storages: tuple[int, ...] = ()
    target: str = ""  # what a symlink holds; empty for the others
    mtime_ns: int | None = None  # modification time since 1970, if it was asked to be kept


@dataclass(frozen=True, slots=True)
class Description:
    """What the caller says about a checkpoint; all of it is checked and plain JSON (`model/manifest/describe`)."""

    metrics: dict[str, int | float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    parent: str | None = None


class DcpValue(NamedTuple):
    """A value of a state dict that `torch.distributed.checkpoint` saved: its name there, and its place in the state."""

    # A number in the path is a place in a list, a string a key, or the text of a key that is no string.

    name: str
    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class RankRecord:
    """How a checkpoint of several ranks was saved.

    Attributes:
        world_size: How many there were.
        attempt: Names this try; two tries at the same step differ in it.
        hosts: The name of each rank's host.
        entries: What `torch.distributed.checkpoint` saved; None: each rank saved a state or files of its own.
    """

    world_size: int
    attempt: str
    hosts: tuple[str, ...]
    entries: tuple[DcpValue, ...] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of ``manifest.json``; see docs/format/v1.md for each member."""

    # `encoding` is not in it: it says how the blobs are stored where the checkpoint was compacted.

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
    encoding: Encoding | None = None
    health: Health | None = None  # None if its values were not counted
    training: str = ""  # the training that it belongs to; empty: an older ckstore saved it

    @property
    def stored(self) -> tuple[BlobRecord, ...]:
        """The files in its directory: its blobs, and where it was compacted, what they are decoded from."""
        return self.blobs if self.encoding is None else self.encoding.files

    @property
    def kept_bytes(self) -> int:
        """Sizes of the files that its blobs are in, plain or encoded, each once."""
        if self.encoding is None:
            return sum(blob.nbytes for blob in self.blobs)
        sizes = dict(self.encoding.files)
        return sum(sizes[name] for name in {self.encoding.file_of(blob.digest) for blob in self.blobs})

    @property
    def places(self) -> list[int | None]:
        """For each blob the index of its file in `stored`; None: it is encoded."""
        if self.encoding is None:
            return list(range(len(self.blobs)))
        numbers = {file.digest: number for number, file in enumerate(self.stored)}
        return [numbers.get(blob.digest) for blob in self.blobs]

    def files_of(self, blob: int) -> list[str]:
        """Return the digests of the files that a blob, given by its index, is read from: itself, or all on its path."""
        digest = self.blobs[blob].digest
        return [digest] if self.encoding is None else list(map(self.encoding.file_of, self.encoding.path(digest)))

    @property
    def name(self) -> str:
        """The full ref of the checkpoint, ``RUN@STEP``."""
        return f"{self.run}@{self.step}"

    @property
    def requires(self) -> tuple[str, ...]:
        """What a reader must understand; `KNOWN_REQUIRES`."""
        return (SHARDS,) if any(map(_is_of_shards, self.storages)) else ()


EXTENT_GRAIN_BYTES = 2**20
"""All extents of a storage but the last are a multiple of this: they can be mapped side by side."""


def _is_of_shards(storage: StorageRecord) -> bool:
    if len(storage.extents) < 2:  # almost all of tens of thousands
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
    """Return the canonical JSON of a leaf; members that have their default are left out."""
    # Put together by hand: a state has tens of thousands of leaves, and no dict is needed for one.
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
    """The canonical JSON of the leaves and of the state, made once for the two places that hold them."""

    leaves: str
    state: str

    @classmethod
    def of(cls, leaves: Iterable[LeafRecord], state: Node) -> StateTexts:
        """Return the texts of these."""
        return cls(_list_of(map(leaf_text, leaves)), canonical_text(state))


def content_digest(
    texts: StateTexts, storages: Iterable[StorageRecord], algorithm: Algorithm, files: tuple[FileRecord, ...] = ()
) -> str:
    """Return the digest that says whether two checkpoints hold the same (docs/format/v1.md, "content")."""
    members = {
        "leaves": texts.leaves,
        "state": texts.state,
        "storages": _list_of(
            [
                f"[{s.nbytes},{_list_of([f'[{quoted(e.piece)},{e.length}]' for e in s.extents])}{_tiling_text(s)}]"
                for s in storages
            ]
        ),
    }
    if files:
        # Without times: a directory that was copied and committed again holds the same.
        members["files"] = canonical_text([file_json(replace(file, mtime_ns=None)) for file in files])
    return algorithm.digest(object_of(members))


def render(manifest: Manifest, algorithm: Algorithm, texts: StateTexts | None = None) -> tuple[str, bytes]:
    """Return the id of the manifest and the bytes of ``manifest.json``; `texts` are those of its leaves and state."""
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
        plain["ranks"] = _ranks_json(manifest.ranks)
    if manifest.health is not None:
        plain["health"] = manifest.health.to_json()
    members = {name: canonical_text(value) for name, value in plain.items()}
    members |= {"leaves": texts.leaves, "state": texts.state, "storages": _storages_text(manifest.storages)}
    body = object_of(members)
    # Of the very bytes that are written: a reader hashes them as they are, and needs no canonical form.
    digest = algorithm.digest(body)
    return digest, b'{"digest":"' + digest.encode("ascii") + b'","manifest":' + body + b"}\n"


def _storages_text(storages: Iterable[StorageRecord]) -> str:
    return _list_of(
        [
            f"[{s.nbytes},{_list_of([f'[{quoted(e.piece)},{e.blob},{e.offset},{e.length}]' for e in s.extents])}"
            f"{_tiling_text(s)}]"
            for s in storages
        ]
    )


def _tiling_text(storage: StorageRecord) -> str:
    if storage.tiling is None:
        return ""
    shape, blocks = storage.tiling
    return f",[{_numbers(shape)},{_list_of(f'[{_numbers(b.offsets)},{_numbers(b.sizes)}]' for b in blocks)}]"


def _ranks_json(ranks: RankRecord) -> dict[str, Any]:
    out: dict[str, Any] = {"world_size": ranks.world_size, "attempt": ranks.attempt, "hosts": list(ranks.hosts)}
    if ranks.entries is not None:
        out["entries"] = [[entry.name, list(entry.path)] for entry in ranks.entries]
    return out
