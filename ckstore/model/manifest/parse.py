"""Read ``manifest.json``, and check the digest, then every type and number, before any value is used.

Source: docs/format/v1.md, "manifest.json", "Nodes", "Names" and "Files". `leaf_records` reads leaves.

The tree of the state is traversed with a list instead of recursion, because the caller may already use most of the
stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from ckstore.errors import BadInput, DamagedBlob, OtherHash
from ckstore.interpreter import python_gc_paused
from ckstore.model.canonical import SAFE_INT
from ckstore.model.digest import algorithm_of, is_digest
from ckstore.model.document import (
    MAX_DEPTH,
    check_created,
    check_format,
    check_requires,
    is_big_decimal,
    parse_object,
    refuse,
    shown,
)
from ckstore.model.manifest import encoding
from ckstore.model.manifest.describe import check_metadata
from ckstore.model.manifest.health import read_health
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.leaf_records import numpy_itemsize, read_leaves
from ckstore.model.manifest.manifest import (
    BLOB_MAX_BYTES,
    EXTENT_GRAIN_BYTES,
    KNOWN_REQUIRES,
    MANIFEST_FORMAT,
    MANIFEST_MAX_BYTES,
    MANIFEST_VERSION,
    MODE_MOST,
    NAMES_MOST_CHARS,
    NAMES_MOST_TIMES,
    SHARDS,
    BlobRecord,
    Description,
    Extent,
    FileKind,
    FileRecord,
    LeafRecord,
    Manifest,
    StorageRecord,
)
from ckstore.model.manifest.nodes import bytes_in, decode_key, identity_of, is_float, join
from ckstore.model.manifest.python_values import CLASS_MOST, FACTORIES, is_class_name, is_python_value
from ckstore.model.manifest.ranks import read_ranks
from ckstore.model.manifest.shards import read_tiling
from ckstore.model.names import MAX_SEQUENCE, check_path, check_run, join_key, parent_of

_HEAD = b'{"digest":"'
_MIDDLE = b'","manifest":'
_TAIL = b"}\n"
# The longest digest is blake3-… with 71 characters.
_DIGEST_MAX_BYTES = 80
_HEX_BY_PREFIX = {"xxh3": 32, "blake3": 64}
_TRAINING = re.compile(r"[0-9a-f]{32}\Z")
_SHOWN = {SAFE_INT: "2^53", MAX_SEQUENCE: "2^53 - 1"}
_METRIC_WORDS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def parse_manifest(
    data: bytes, *, where: str, hash_prefix: str = "", plain: Callable[[], bytes] | None = None
) -> tuple[Manifest, str]:
    """Return the manifest in ``manifest.json``, and its id.

    In the result, metadata is still encoded (`describe.decoded_metadata` decodes it), and the nodes of the state are
    JSON values. All values conform to the format, so that callers need not check them again.

    Args:
        data: The bytes of the file.
        where: The name of the file, for messages.
        hash_prefix: The prefix of the digests of the store. If empty, any prefix is accepted.
        plain: Returns the bytes of the plain manifest, which a compacted checkpoint has in another file. If None, a
            compacted checkpoint is refused.

    Raises:
        DamagedBlob: The file is not framed as a manifest, or its digest does not match its bytes.
        OtherHash: The file is from a store with another hash.
        BadInput: The bytes are intact but do not conform to the format, or there are more than `MANIFEST_MAX_BYTES`.
    """
    # Check the size before hashing or parsing, because a hostile file must not exhaust the memory of the host.
    if len(data) > MANIFEST_MAX_BYTES:
        refuse(where, "the manifest", f"at most {MANIFEST_MAX_BYTES} bytes", len(data))
    # Check the digest before the JSON, so that a flipped bit is reported as damage and not as a wrong member.
    manifest_id, body = _unframe(data, where, hash_prefix)
    with python_gc_paused():
        members = parse_object(body, where=where)
        if plain is None or not encoding.is_encoding(members):
            return _Reader(members, manifest_id, where, len(body)).whole(), manifest_id
        form = encoding.parse(members, where)
    manifest, manifest_id = parse_manifest(plain(), where=f"the plain manifest beside {where}", hash_prefix=hash_prefix)
    encoding.check_fits(form, manifest.blobs, manifest_id, where)
    return replace(manifest, form=form), manifest_id


def parse_encoding(data: bytes, *, where: str) -> encoding.Encoding:
    """Return the encoding in the ``manifest.json`` of a compacted checkpoint, with the checks of `parse_manifest`."""
    _, body = _unframe(data, where, "")
    return encoding.parse(parse_object(body, where=where), where)


def parse_facts(
    data: bytes, *, where: str, hash_prefix: str = "", plain: Callable[[], bytes] | None = None
) -> CheckpointInfo:
    """Return the facts about a whole checkpoint from its ``manifest.json``, without checking its values and blobs.

    This takes a fifth of the time of `parse_manifest`. A load of the checkpoint may still fail.
    """
    if len(data) > MANIFEST_MAX_BYTES:
        refuse(where, "the manifest", f"at most {MANIFEST_MAX_BYTES} bytes", len(data))
    manifest_id, body = _unframe(data, where, hash_prefix)
    with python_gc_paused():
        members = parse_object(body, where=where)
        if plain is not None and encoding.is_encoding(members):
            return parse_facts(plain(), where=f"the plain manifest beside {where}", hash_prefix=hash_prefix)
        reader = _Reader(members, manifest_id, where, len(body))
        reader.check_head()
        return CheckpointInfo.of(reader.facts(), manifest_id, leaf_count=len(reader.array("leaves")))


def _unframe(data: bytes, where: str, hash_prefix: str) -> tuple[str, memoryview]:
    """Return the id and the bytes of the manifest inside the frame, after checking that the bytes match the id."""
    end = data.find(b'"', len(_HEAD), len(_HEAD) + _DIGEST_MAX_BYTES + 1)
    start = end + len(_MIDDLE)
    if not (data.startswith(_HEAD) and data.startswith(_MIDDLE, end) and data.endswith(_TAIL)):
        wanted = '{"digest":"…","manifest":…} and a line feed'
        found = f"{len(data)} bytes: {shown(data[:40])} … {shown(data[-10:])}"
        raise DamagedBlob(f"{where} is not framed as a manifest: wanted {wanted}, found {found}")
    claimed = data[len(_HEAD) : end].decode("latin-1")
    # The digest must be valid, because its prefix selects the algorithm.
    if not is_digest(claimed):
        raise DamagedBlob(f"{where}: wanted a digest xxh3-… or blake3-…, found {shown(claimed)}")
    # Check the prefix before hashing, because the package for another hash may be missing.
    if hash_prefix and not claimed.startswith(f"{hash_prefix}-"):
        found = claimed.partition("-")[0]
        msg = (
            f"{where} belongs to a store with another hash: wanted digests that begin with "
            f"{hash_prefix}-, found {found}-"
        )
        raise OtherHash(msg, hint="move its directory away; ckstore.open_checkpoint(DIRECTORY) reads it where it is")
    body = memoryview(data)[start : len(data) - len(_TAIL)]
    found = algorithm_of(claimed).digest(body)
    if found != claimed:
        raise DamagedBlob(f"{where} is damaged: wanted the digest {claimed}, found {found}")
    return claimed, body


def read_metrics(metrics: object, where: str) -> dict[str, int | float]:
    """Return the metrics in a JSON value."""
    if not isinstance(metrics, dict):
        refuse(where, "metrics", "an object", metrics)
    decoded: dict[str, int | float] = {}
    for name, value in metrics.items():
        if isinstance(value, str) and value in _METRIC_WORDS:
            decoded[name] = _METRIC_WORDS[value]
        elif type(value) is int or type(value) is float:
            decoded[name] = value
        else:
            refuse(where, f"metrics[{shown(name)}]", "a number, 'nan', 'inf' or '-inf'", value)
    return decoded


class _Reader:
    """Checks one parsed manifest, member by member."""

    def __init__(self, members: dict[str, Any], manifest_id: str, where: str, nbytes: int) -> None:
        self.members = members
        self.nbytes = nbytes
        self.where = where
        prefix = manifest_id.partition("-")[0]
        self.is_own_digest = re.compile(rf"{prefix}-[0-9a-f]{{{_HEX_BY_PREFIX[prefix]}}}\Z").match
        self.wanted_digest = f"a digest {prefix}-…"

    def whole(self) -> Manifest:
        members = self.members
        self.check_head()
        blobs = self.blobs()
        storages = self.storages(blobs)
        leaves = read_leaves(self.array("leaves"), storages, self.where)
        if "state" not in members:
            refuse(self.where, "state", "a node", "no such member", words=True)
        check_state(members["state"], leaves, self.where, NAMES_MOST_CHARS + NAMES_MOST_TIMES * self.nbytes)
        logical_bytes = self.integer("logical_bytes")
        total = sum(storage.nbytes for storage in storages)
        if logical_bytes != total:
            refuse(self.where, "logical_bytes", f"the sum of the storages, {total}", logical_bytes)
        return replace(
            self.facts(),
            blobs=blobs,
            storages=storages,
            leaves=leaves,
            state=members["state"],
            files=read_files(members.get("files", []), len(storages), self.where),
            ranks=read_ranks(members["ranks"], self.where) if "ranks" in members else None,
        )

    def check_head(self) -> None:
        check_format(self.members, MANIFEST_FORMAT, MANIFEST_VERSION, self.where)
        check_requires(self.members.get("requires", []), KNOWN_REQUIRES, self.where)

    def facts(self) -> Manifest:
        """Return the manifest without its blobs, storages, leaves, state, files and ranks."""
        members = self.members
        return Manifest(
            run=self.run(),
            step=self.integer("step"),
            sequence=self.integer("sequence", least=1, most=MAX_SEQUENCE),
            created=check_created(members.get("created"), self.where),
            writer=self.text("writer"),
            description=self.description(),
            training=self.training(),
            logical_bytes=self.integer("logical_bytes"),
            new_bytes=self.integer("new_bytes"),
            reused_bytes=self.integer("reused_bytes"),
            content=self.own_digest(members.get("content"), "content"),
            blobs=(),
            storages=(),
            leaves=(),
            state=None,
            health=read_health(members["health"], self.where) if "health" in members else None,
        )

    # ------------------------------------------------------------------ single members

    def integer(self, name: str, least: int = 0, most: int = SAFE_INT) -> int:
        value = self.members.get(name)
        if type(value) is not int or not least <= value <= most:
            refuse(self.where, name, f"an integer from {least} to {_SHOWN[most]}", value)
        return value

    def text(self, name: str) -> str:
        value = self.members.get(name)
        if not isinstance(value, str):
            refuse(self.where, name, "a string", value)
        return value

    def array(self, name: str) -> list[Any]:
        value = self.members.get(name)
        if not isinstance(value, list):
            refuse(self.where, name, "an array", value)
        return value

    def own_digest(self, value: object, member: str) -> str:
        """Return a digest that has the algorithm of the manifest itself."""
        if not isinstance(value, str) or self.is_own_digest(value) is None:
            refuse(self.where, member, self.wanted_digest, value)
        return value

    def run(self) -> str:
        try:
            return check_run(self.members.get("run"))
        except BadInput as error:
            raise BadInput(f"{self.where}: {error.message}") from error

    def description(self) -> Description:
        parent = self.members.get("parent", 0)
        if parent is not None and not is_digest(parent):
            refuse(self.where, "parent", "an id or null", parent)
        metadata = check_metadata(self.members.get("metadata"), self.where)
        return Description(self.metrics(), metadata, self.text("message"), parent)

    def training(self) -> str:
        value = self.members.get("training", "")
        if "training" in self.members and (not isinstance(value, str) or _TRAINING.match(value) is None):
            refuse(self.where, "training", "32 hexadecimal digits, or no such member", value)
        return str(value)

    def metrics(self) -> dict[str, int | float]:
        return read_metrics(self.members.get("metrics"), self.where)

    # ------------------------------------------------------------------ bytes

    def blobs(self) -> tuple[BlobRecord, ...]:
        blobs = []
        seen = set()
        for i, item in enumerate(self.array("blobs")):
            if type(item) is not list or len(item) != 2:
                refuse(self.where, f"blobs[{i}]", "[digest, size]", item)
            digest, nbytes = item
            self.own_digest(digest, f"blobs[{i}]")
            if type(nbytes) is not int or not 1 <= nbytes <= BLOB_MAX_BYTES:
                refuse(self.where, f"size of blobs[{i}]", f"an integer from 1 to {BLOB_MAX_BYTES}", nbytes)
            # Two entries of one blob would give two sizes for one file.
            if digest in seen:
                refuse(self.where, f"blobs[{i}]", "each blob once", digest)
            seen.add(digest)
            blobs.append(BlobRecord(digest, nbytes))
        return tuple(blobs)

    def storages(self, blobs: tuple[BlobRecord, ...]) -> tuple[StorageRecord, ...]:
        sizes = [blob.nbytes for blob in blobs]
        storages = []
        with_shards = SHARDS in self.members.get("requires", [])
        for i, item in enumerate(self.array("storages")):
            if type(item) is not list or len(item) not in (2, 2 + with_shards) or type(item[1]) is not list:
                refuse(self.where, f"storages[{i}]", "[size, extents]", item)
            nbytes, items = item[:2]
            if type(nbytes) is not int or nbytes < 0:
                refuse(self.where, f"size of storages[{i}]", "an integer from 0", nbytes)
            extents: list[Extent] = []
            total = 0
            for extent_item in items:
                if total % EXTENT_GRAIN_BYTES and not with_shards:
                    wanted = f"all but the last to be a multiple of {EXTENT_GRAIN_BYTES} long"
                    refuse(self.where, f"extents of storages[{i}]", wanted, extents[-1].length)
                extents.append(self.extent(extent_item, sizes, i))
                total += extents[-1].length
            # Memory is allocated according to the size and filled from the extents. A difference would leave bytes
            # undefined.
            if total != nbytes:
                refuse(self.where, f"extents of storages[{i}]", f"lengths that add up to {nbytes}", total)
            tiling = read_tiling(item[2], nbytes, extents, f"storages[{i}]", self.where) if len(item) > 2 else None
            storages.append(StorageRecord(nbytes, tuple(extents), tiling))
        return tuple(storages)

    def extent(self, item: Any, sizes: list[int], storage: int) -> Extent:
        if type(item) is not list or len(item) != 4:
            refuse(self.where, f"an extent of storages[{storage}]", "[digest, blob, offset, length]", item)
        piece, blob, offset, length = item
        self.own_digest(piece, f"piece of storages[{storage}]")
        if type(blob) is not int or not 0 <= blob < len(sizes):
            refuse(self.where, f"blob of storages[{storage}]", f"an index below {len(sizes)}", blob)
        if type(offset) is not int or type(length) is not int or offset < 0 or length < 1:
            refuse(self.where, f"an extent of storages[{storage}]", "offset >= 0, length >= 1", item)
        # Reads and mappings use these numbers. Access to a mapping beyond the end of the file would kill the process.
        if offset + length > sizes[blob]:
            wanted = f"an end within the {sizes[blob]} bytes of its blob"
            refuse(self.where, f"an extent of storages[{storage}]", wanted, offset + length)
        return Extent(piece, blob, offset, length)


_INDEX_CHARS = 3
_ATTRIBUTES = object()  # represents the key of an ordered dict's attributes, which have no name and so no leaves

_STATE = object()  # represents the key of the state itself

_Children = Iterable[tuple[Any, Any]]


def check_state(state: Any, leaves: Sequence[LeafRecord], where: str, names_most: int) -> None:
    """Check that `state` is a node that names each of `leaves` once, by its path.

    `names_most` limits the characters in the paths of all values together, counted without escapes.
    """
    walk = _StateCheck(leaves, where, names_most)
    walk.down([(_STATE, state)])
    # A leaf that no node names could not be loaded, and the loss of its bytes would not be noticed.
    if not all(walk.named):
        name = leaves[walk.named.index(False)].name
        refuse(where, "state", f"one node that names the leaf {shown(name)}", "none", words=True)


class _Place:
    """The position of a container in the state.

    The name of a container is computed only if there is a leaf in it. A hostile manifest can therefore not cause long
    names for many empty containers.
    """

    __slots__ = ("_name", "depth", "key", "leafless", "name_chars", "parent")

    def __init__(self, parent: _Place | None, key: Any) -> None:
        self.parent = parent
        self.key = key
        self.depth: int = parent.depth + 1 if parent else 0
        self.leafless: bool = key is _ATTRIBUTES or (parent is not None and parent.leafless)
        self._name: str | None = None if parent else ""
        is_tuple = type(key) is list and key[0] == "tuple"
        own_chars = len(key) if type(key) is str else len(join("", decode_key(key))) if is_tuple else _INDEX_CHARS
        self.name_chars: int = parent.name_chars + own_chars if parent else 0

    @property
    def name(self) -> str:
        if self._name is None:
            self._name = self.parent.child(self.key) if self.parent else ""
        return self._name

    def child(self, key: Any) -> str:
        """Return the name of the value at `key` (a node), which is empty for the state itself."""
        if key is _ATTRIBUTES:
            return f"{self.name} (attributes)"
        if type(key) is str:
            return join_key(self.name, key)
        return "" if key is _STATE else join(self.name, decode_key(key))


class _StateCheck:
    """Checks each node of a state once."""

    def __init__(self, leaves: Sequence[LeafRecord], where: str, names_most: int) -> None:
        self.names_most = self.names_left = names_most
        self.leaves = leaves
        self.where = where
        self.named = [False] * len(leaves)

    def down(self, top: _Children) -> None:
        """Check the nodes of `top` (the state with the key `_STATE`) and all nodes below."""
        stack: list[tuple[_Place, Iterator[tuple[Any, Any]]]] = [(_Place(None, _STATE), iter(top))]
        while stack:
            place, items = stack[-1]
            for key, node in items:
                # Check common values first, because a state has hundreds of thousands of them.
                kind = type(node)
                if kind is str or kind is int or node is None or kind is bool:
                    continue
                if kind is not list or not node or type(node[0]) is not str:
                    self.refuse(place, key, "a node", node)
                children = self.array(node, place, key)
                if children is not None:
                    below = _Place(place, key)
                    if below.depth > MAX_DEPTH:
                        self.refuse(place, key, f"containers at most {MAX_DEPTH} deep", node)
                    # Count names without creating them, because a few bytes of nesting can imply gigabytes of names.
                    self.names_left -= below.name_chars * len(node[1])
                    if self.names_left < 0:
                        self.refuse(place, key, f"names of at most {self.names_most} characters", "more", words=True)
                    stack.append((below, iter(children)))
                    break
            else:
                stack.pop()

    def array(self, node: list[Any], place: _Place, key: Any) -> _Children | None:  # noqa: RET503 - refuse
        """Check a node that is an array; return its children if it is a container."""
        tag, size = node[0], len(node)
        if tag == "leaf" and size == 2:
            self.leaf(node[1], place, key)
            return None
        if tag in ("list", "tuple") and size == 2 and type(node[1]) is list:
            return enumerate(node[1])
        if tag == "deque" and size == 3 and type(node[1]) is list:
            most = node[2]
            if most is None or (type(most) is int and len(node[1]) <= most <= SAFE_INT):
                return enumerate(node[1])
        if (tag in ("dict", "counter") and size == 2) or (tag in ("odict", "defaultdict") and size == 3):
            return self.pairs(node, place, key)
        if (tag == "parts" and size == 4) or (tag == "object" and size == 3):
            return self.parts(node, place, key)
        if (
            (tag == "float" and size == 2 and is_float(node[1]))
            or (tag == "int" and size == 2 and is_big_decimal(node[1]))
            or (tag == "complex" and size == 3 and is_float(node[1]) and is_float(node[2]))
            or (tag == "bytes" and size == 2 and bytes_in(node[1]) is not None)
            or (tag == "numpy" and size == 3 and _is_numpy_scalar(node[1], node[2]))
            or is_python_value(node)
        ):
            return None
        self.refuse(place, key, "a node", node)

    def leaf(self, index: Any, place: _Place, key: Any) -> None:
        if type(index) is not int or not 0 <= index < len(self.leaves):
            self.refuse(place, key, f"an index below {len(self.leaves)}", index)
        name = place.child(key)
        if place.leafless or key is _ATTRIBUTES:
            self.refuse(place, key, "no leaf among the attributes of a dict", self.leaves[index].name)
        if self.leaves[index].name != name:
            self.refuse(place, key, f"the leaf of that name, {shown(name)}", self.leaves[index].name)
        self.named[index] = True  # no leaf is named twice, because keys are unique

    def pairs(self, node: list[Any], place: _Place, key: Any) -> _Children:
        pairs = node[1]
        if type(pairs) is not list:
            self.refuse(place, key, "an array of [key, node]", pairs)
        seen: set[Any] = set()
        for pair in pairs:
            if type(pair) is not list or len(pair) != 2:
                self.refuse(place, key, "an array of [key, node]", pair)
            own = pair[0]
            if type(own) is str or type(own) is int:
                seen.add(own)
            elif (identity := identity_of(own)) is not None:
                seen.add(identity)
            else:
                self.refuse(place, key, "a string, an integer or another key", own)
        if len(seen) != len(pairs):
            self.refuse(place, key, "each key once", f"{len(seen)} of {len(pairs)}", words=True)
        if node[0] == "defaultdict" and (type(node[2]) is not str or node[2] not in FACTORIES) and node[2] is not None:
            self.refuse(place, key, f"null or one of {', '.join(FACTORIES)}", node[2])
        if node[0] != "odict":
            return pairs
        attributes = node[2]
        if attributes is not None and (type(attributes) is not list or attributes[:1] != ["dict"]):
            self.refuse(place, key, "attributes that are null or a dict", attributes)
        return [*pairs, (_ATTRIBUTES, attributes)]

    def parts(self, node: list[Any], place: _Place, key: Any) -> _Children:
        """Check the parts of a tensor, or the fields of an object; the `extra` of a tensor must not contain a leaf."""
        if not is_class_name(node[2]):
            self.refuse(place, key, f"a class or kind of 1 to {CLASS_MOST} characters", node[2])
        pairs = list(self.pairs(["dict", node[1]], place, key))
        if any(type(own) is not str for own, _ in pairs):
            self.refuse(place, key, "names of parts that are strings", node[1])
        return [*pairs, (_ATTRIBUTES, node[3])] if node[0] == "parts" else pairs

    def refuse(self, place: _Place, key: Any, wanted: str, found: object, *, words: bool = False) -> NoReturn:
        refuse(self.where, f"state at {shown(place.child(key))}", wanted, found, words=words)


def _is_numpy_scalar(dtype: Any, text: Any) -> bool:
    data = bytes_in(text)
    return data is not None and type(dtype) is str and len(data) == numpy_itemsize(dtype)


_KINDS: dict[str, FileKind] = {"file": "file", "directory": "directory", "symlink": "symlink"}
_TARGET_MOST = 4096
_NANOSECONDS = re.compile(r"(?:0|-?[1-9][0-9]{0,27})\Z")
_TIME_MOST_NS = 2**63 * 10**9  # Linux counts seconds in 64 bits


def read_files(items: object, storage_count: int, where: str) -> tuple[FileRecord, ...]:
    """Return the files of a manifest."""
    if not isinstance(items, list):
        refuse(where, "files", "an array", items)
    records = tuple(_record(item, i, storage_count, where) for i, item in enumerate(items))
    kinds: dict[str, str] = {}
    for record in records:
        if record.path in kinds:
            refuse(where, "files", "each path once", record.path)
        kinds[record.path] = record.kind
    for record in records:
        parent = parent_of(record.path)
        if parent and kinds.get(parent) != "directory":
            refuse(where, f"parent of {shown(record.path)}", "a directory that is listed", kinds.get(parent))
    every = [number for record in records for number in record.storages]
    if len(set(every)) != len(every):
        refuse(where, "files", "each storage in one place of one file", "one in several", words=True)
    return records


def _record(item: Any, i: int, storage_count: int, where: str) -> FileRecord:
    if type(item) is not dict:
        refuse(where, f"files[{i}]", "an object", item)
    try:
        path = check_path(item.get("path"), f"path of files[{i}]")
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}") from error
    kind = _KINDS.get(item["kind"]) if type(item.get("kind")) is str else None
    if kind is None:
        refuse(where, f"kind of {shown(path)}", ", ".join(_KINDS), item.get("kind"))
    mtime = item.get("mtime")
    if mtime is not None and (
        not isinstance(mtime, str)
        or _NANOSECONDS.match(mtime) is None
        or not -_TIME_MOST_NS <= int(mtime) < _TIME_MOST_NS
    ):
        refuse(where, f"mtime of {shown(path)}", "nanoseconds since 1970 as decimal digits", mtime)
    mtime_ns = None if mtime is None else int(mtime)
    if kind == "symlink":
        target = item.get("target")
        if type(target) is not str or not 1 <= len(target) <= _TARGET_MOST or "\0" in target:
            refuse(where, f"target of {shown(path)}", f"a text of 1 to {_TARGET_MOST} characters", target)
        return FileRecord(path, kind, target=target)
    mode = item.get("mode")
    if type(mode) is not int or not 0 <= mode <= MODE_MOST:
        refuse(where, f"mode of {shown(path)}", f"an integer from 0 to {MODE_MOST}", mode)
    if kind == "directory":
        return FileRecord(path, kind, mode, mtime_ns=mtime_ns)
    storages = item.get("storages")
    if type(storages) is not list or any(type(s) is not int or not 0 <= s < storage_count for s in storages):
        refuse(where, f"storages of {shown(path)}", f"an array of indexes below {storage_count}", storages)
    return FileRecord(path, kind, mode, tuple(storages), mtime_ns=mtime_ns)
