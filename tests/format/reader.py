"""A reader of ckstore stores and remotes in directories, written from the pages in docs/format alone.

It uses the standard library and `xxhash` (`blake3` for stores hashed with it, `zstandard` for compacted
checkpoints); it knows neither ckstore, torch nor NumPy. It is slow and short, to be read beside the page: every
function names its section.
"""

from __future__ import annotations

import base64
import importlib
import io
import itertools
import json
import math
import os
import re
import stat
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

RUN = re.compile(r"[A-Za-z0-9._-]{1,100}\Z")
NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9a-f]{10,})(?:\.([1-9][0-9]{0,5}))?)?\Z")
HEX = re.compile(r"(?:xxh3-|blake3-)?[0-9a-fA-F]{6,}\Z")
DIGEST = re.compile(r"xxh3-[0-9a-f]{32}\Z|blake3-[0-9a-f]{64}\Z")
MIB = 2**20


class FormatError(Exception):
    """What is on disk is not as the page says."""


def check(condition: object, what: str) -> None:
    """Raise FormatError with `what` unless `condition` holds."""
    if not condition:
        raise FormatError(what)


# ------------------------------------------------------------------ Terms


def digest_of(data: bytes, like: str) -> str:
    """Return the digest of `data` by the algorithm of the digest `like`."""
    if like.startswith("xxh3-"):
        return "xxh3-" + xxhash.xxh3_128_hexdigest(data)
    blake3: Any = importlib.import_module("blake3")
    return f"blake3-{blake3.blake3(data).hexdigest()}"


def parse_json(data: bytes) -> Any:
    """Read JSON as the first section has it: ASCII, no member twice, no NaN, no Infinity, no great integer."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        check(len(dict(pairs)) == len(pairs), f"a member twice: {[name for name, _ in pairs]}")
        return dict(pairs)

    def integer(text: str) -> int:
        value = int(text)
        check(abs(value) <= 2**53, f"an integer outside 2^53: {text}")
        return value

    def constant(text: str) -> None:
        raise FormatError(f"{text} does not occur")

    return json.loads(data.decode("ascii"), object_pairs_hook=members, parse_int=integer, parse_constant=constant)


# ------------------------------------------------------------------ what a state is made of


@dataclass(frozen=True)
class Tensor:
    """A tensor (`kind` torch) or an array (numpy): its elements, row-major.

    `storage` says which storage of the checkpoint they lie in: tensors with the same one share memory.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    storage: int


@dataclass(frozen=True)
class NumpyScalar:
    """A NumPy scalar: its dtype and bytes."""

    dtype: str
    data: bytes


@dataclass(frozen=True)
class Plain:
    """A value of Python, torch or NumPy that this reader leaves as the page has it."""

    kind: str
    held: list[Any]


@dataclass(frozen=True)
class Parts:
    """A tensor that is made of other tensors."""

    kind: str
    tensors: dict[Any, Any]
    extra: Any


PLAIN = {"date", "datetime", "timedelta", "path", "torch.Size", "torch.device", "numpy.str_"}
PLAIN |= {"enum", "global", "torch.dtype", "torch.layout", "torch.memory_format", "torch.qscheme"}


@dataclass
class OrderedDict:
    """An ordered dict and the attributes set on it."""

    items: list[tuple[Any, Any]]
    attributes: dict[Any, Any] | None = field(default=None)


# ------------------------------------------------------------------ dtypes (section "Leaves")

_TORCH = {
    1: "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
    2: "int16 uint16 float16 bfloat16",
    4: "int32 uint32 float32 complex32 bcomplex32",
    8: "int64 uint64 float64 complex64",
    16: "complex128",
}
TORCH_ITEMSIZE = {name: size for size, names in _TORCH.items() for name in names.split()}
_NUMPY = re.compile(r"[<>|]([biufcMmSU])([0-9]+)(\[\w+\])?\Z")


def itemsize(kind: str, dtype: str) -> int:
    """Return the size of one item."""
    if kind == "torch":
        check(dtype in TORCH_ITEMSIZE, f"no torch dtype: {dtype}")
        return TORCH_ITEMSIZE[dtype]
    if kind == "numbers":
        check(dtype in ("int64", "float64", "bool"), f"no numbers: {dtype}")
        return 1 if dtype == "bool" else 8
    match = _NUMPY.match(dtype)
    check(match, f"no NumPy dtype: {dtype}")
    size = int(match[2]) * (4 if match[1] == "U" else 1) if match else 0
    check(size >= 1, f"an item size of 0: {dtype}")
    return size


# ------------------------------------------------------------------ A checkpoint


def unframe(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return id and members of a manifest (section "manifest.json")."""
    match = re.match(rb'\{"digest":"([a-z0-9-]+)","manifest":', data)
    check(match and data.endswith(b"}\n"), "not framed as a manifest")
    claimed = match[1].decode() if match else ""
    check(DIGEST.match(claimed), f"no digest: {claimed}")
    body = data[match.end() if match else 0 : -2]
    check(digest_of(body, claimed) == claimed, "the manifest is damaged")
    members: dict[str, Any] = parse_json(body)
    check(members["format"] == "ckstore-manifest", "another format")
    check(members["version"] <= 1, "a newer version")
    return claimed, members


# ------------------------------------------------------------------ Encoded pieces (docs/format/encoded-1.md)


class Encoding:
    """What is in the directory of a compacted checkpoint."""

    def __init__(self, read: Callable[[str], bytes], members: dict[str, Any], blobs: list[Any]) -> None:
        """Check that each blob of the manifest is there in one form, and that no path is a loop or too long."""
        check(members["requires"] == ["encoded-1"], "asks for what this reader does not know")
        self.read, self.members = read, members
        self.files = dict(members["files"])
        self.encoded = {item[0]: item[1:] for item in members["encoded"]}
        check(len(self.encoded) == len(members["encoded"]) and not self.encoded.keys() & self.files.keys(), "two forms")
        for digest, size in blobs:
            check((self.encoded[digest][0] if digest in self.encoded else self.files.get(digest)) == size, "a size")
        for digest in self.encoded:
            self.check_path(digest, 8)

    def check_path(self, digest: str, left: int) -> None:
        """Follow the bases of a blob, at most eight encoded ones."""
        check(digest in self.encoded or digest in self.files, f"no base {digest}")
        for base in self.encoded[digest][2] if digest in self.encoded else ():
            check(left > 0, "a path is a loop or too long")
            self.check_path(base, left - 1)

    def plain(self, digest: str) -> bytes:
        """Return a plain blob (section "The container")."""
        if digest not in self.encoded:
            return self.read(digest)
        size, number, bases = self.encoded[digest]
        data = self.read(self.members["files"][number][0])
        check(data[:8] == b"ckenc-1\n", "not a container")
        length = int.from_bytes(data[8:12], "little")
        header = parse_json(data[12 : 12 + length])
        check((header["plain"], header["bytes"], header["bases"]) == (digest, size, bases), "another container")
        plain_bases = [self.plain(base) for base in bases]
        spans = [
            (min(MIB, count - at), width, at, source)
            for count, width, *source in header["runs"]
            for at in range(0, count, MIB)
        ]
        at = 12 + length + 4 * len(spans)
        out = []
        for i, (count, width, start, source) in enumerate(spans):
            entry = int.from_bytes(data[12 + length + 4 * i :][:4], "little")
            stored = data[at : at + entry % 2**24]
            at += len(stored)
            predicted = b""
            if source:
                kind, base, offset = source
                times = 1 if kind == "same" else 2
                first = offset + times * start
                predicted = predict(kind, plain_bases[base][first : first + times * count])
            out.append(tile(entry >> 24, stored, predicted, count, width))
        check(at == len(data), "bytes behind the last tile")
        return b"".join(out)


def predict(kind: str, base: bytes) -> bytes:
    """Return what the bytes of a base say (section "Predictions")."""
    if kind == "same":
        return base
    out = bytearray()
    for (bits,) in struct.iter_unpack("<I", base):
        if bits & 0x7FFFFFFF > 0x7F800000:
            half = 0x7FC0 if kind == "bf16" else 0x7E00
        elif kind == "bf16":
            half = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        else:
            value = struct.unpack("<f", bits.to_bytes(4, "little"))[0]
            try:
                half = int.from_bytes(struct.pack("<e", value), "little")
            except OverflowError:
                half = 0xFC00 if bits >> 31 else 0x7C00
        out += half.to_bytes(2, "little")
    return bytes(out)


def tile(codec: int, stored: bytes, predicted: bytes, count: int, width: int) -> bytes:
    """Return a tile (section "Tiles")."""
    n = count // width
    if codec == 0:
        check(len(stored) == count, "a raw tile of another size")
        return stored
    if codec == 1:
        return b"".join(x.to_bytes(width, "little") for x in planes(stored, n, width))
    if codec == 5:
        check(width in (2, 4), "floats of another width")
        sign = 8 * width - 9  # the position of the sign; the exponent is above it, and the mantissa below
        floats = ((f >> sign & 1, f >> sign + 1, f % 2**sign) for f in planes(stored, n, width))
        return b"".join((s << 8 * width - 1 | e << sign | m).to_bytes(width, "little") for s, e, m in floats)
    check(len(predicted) == count, "a tile without a base")
    if codec == 4:
        return predicted
    x = [int.from_bytes(predicted[i : i + width], "little") for i in range(0, count, width)]
    high = int.from_bytes(b"\x80" * width, "little")
    if codec == 2:
        places, differences = list(range(n)), planes(stored, n, width)
    else:
        check(codec == 3, f"no codec {codec}")
        changed, steps, packed = struct.unpack("<III", stored[:12])
        check(0 < changed <= steps <= n, "gaps that do not fit")
        raw = stored[12 : 12 + packed] if packed == steps else unzstd(stored[12 : 12 + packed], steps)
        places, at = [], 0
        for step in raw:
            at += step
            if step < 255:
                places.append(at)
                at += 1
        check(len(places) == changed and places[-1] < n, "gaps that do not fit")
        differences = planes(stored[12 + packed :], changed, width)
    for place, d in zip(places, differences, strict=True):
        x[place] = ((d ^ high) - high + x[place]) % 2 ** (8 * width)
    return b"".join(value.to_bytes(width, "little") for value in x)


def planes(data: bytes, n: int, width: int) -> list[int]:
    """Return the integers of packed planes."""
    lengths = struct.unpack(f"<{width}I", data[: 4 * width])
    at, out = 4 * width, [0] * n
    for k, length in enumerate(lengths):
        plane = data[at : at + length]
        at += length
        if length:
            plane = plane if length == n else unzstd(plane, n)
            out = [value | byte << 8 * k for value, byte in zip(out, plane, strict=True)]
    check(at == len(data), "bytes behind the last plane")
    return out


def unzstd(frame: bytes, size: int) -> bytes:
    """Return the bytes of one frame, which says its size."""
    zstandard: Any = importlib.import_module("zstandard")
    check(zstandard.frame_content_size(frame) == size, "a frame of another size")
    data: bytes = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)
    return data


class Checkpoint:
    """One checkpoint: its directory, or a copy of it, or its documents at a remote."""

    def __init__(self, directory: Path, remote: Callable[[str], bytes] | None = None) -> None:
        """Read and check ``manifest.json`` (section of that name); `remote` gives the blobs that are not here."""
        self.directory, self.remote = directory, remote
        self._last = "", b""
        self.id, self.manifest = unframe((directory / "manifest.json").read_bytes())
        self.encoding: Encoding | None = None
        if "encoded-1" in self.manifest.get("requires", []):
            encoding = self.manifest
            self.id, self.manifest = unframe((directory / "plain.json").read_bytes())
            check(encoding["checkpoint"] == self.id, "the encoding of another checkpoint")
            self.encoding = Encoding(self.file, encoding, self.manifest["blobs"])
        check(set(self.manifest.get("requires", [])) <= {"shards"}, "asks for what this reader does not know")
        self._read: dict[int, bytes] = {}

    @property
    def order(self) -> tuple[int, str, str]:
        """The latest has the greatest."""
        return self.manifest["sequence"], self.manifest["created"], self.id

    def stored(self) -> list[Any]:
        """Return digest and size of each file in ``blobs/``."""
        found: list[Any] = self.manifest["blobs"] if self.encoding is None else self.encoding.members["files"]
        return found

    def is_remote_only(self) -> bool:
        """Whether ``elsewhere.json`` lists who has the blobs that are missing here (section of that name)."""
        if self.encoding is not None:
            return False
        try:
            return bool(small_file(self.directory / "elsewhere.json", "ckstore-elsewhere")["remotes"])
        except (FormatError, OSError, ValueError, LookupError):
            return False

    def file(self, digest: str) -> bytes:
        """Return a file of ``blobs/``, or what the remote has under this name."""
        if self._last[0] != digest:
            try:
                data = (self.directory / "blobs" / digest).read_bytes()
            except FileNotFoundError:
                if self.remote is None:
                    raise
                data = self.remote(digest)
                check(digest_of(data, digest) == digest, f"{digest} is damaged at the remote")
            self._last = digest, data  # the next piece is often of the same pack
        return self._last[1]

    def is_complete(self) -> bool:
        """Whether each blob is a regular file of its size, or only at a remote."""
        for digest, size in self.stored():
            try:
                found = os.stat(self.directory / "blobs" / digest, follow_symlinks=False)
            except FileNotFoundError:
                if self.is_remote_only():
                    continue
                return False
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return False
        return True

    def is_whole(self) -> bool:
        """Whether it is complete and has no mark (section "Names of checkpoints")."""
        return self.is_complete() and not os.path.lexists(self.directory / "damaged.json")

    def check_blobs(self) -> None:
        """Check that every blob has the digest that it is named by (section "Blobs")."""
        for digest, size in self.stored():
            data = self.file(digest)
            check(len(data) == size and digest_of(data, digest) == digest, f"blob {digest} is damaged")

    def metrics(self) -> dict[str, float]:
        """Return the metrics."""
        return {name: float(value) for name, value in self.manifest["metrics"].items()}

    def metadata(self) -> Any:
        """Return the metadata, with the numbers that JSON lacks."""
        return _free(self.manifest["metadata"])

    def content(self) -> str:
        """Return what the member `content` should be."""
        held: dict[str, Any] = {
            "leaves": self.manifest["leaves"],
            "state": self.manifest["state"],
            "storages": [[s[0], [[e[0], e[3]] for e in s[1]], *s[2:]] for s in self.manifest["storages"]],
        }
        if self.manifest.get("files"):
            held["files"] = [{k: v for k, v in file.items() if k != "mtime"} for file in self.manifest["files"]]
        canonical = json.dumps(held, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return digest_of(canonical.encode("ascii"), self.id)

    def storage(self, index: int) -> bytes:
        """Return the bytes of a storage: its pieces in order, each compared with its digest."""
        if index not in self._read:
            size, extents, *tiling = self.manifest["storages"][index]
            pieces = [self._piece(*extent) for extent in extents]
            data = b"".join(pieces) if not tiling else _untiled(tiling[0], pieces)
            check(len(data) == size, f"storage {index} is {len(data)} bytes, not {size}")
            if "shards" not in self.manifest.get("requires", []):
                check(all(extent[3] % MIB == 0 for extent in extents[:-1]), f"storage {index} is cut off the grid")
            self._read[index] = data
        return self._read[index]

    def _piece(self, digest: str, blob: int, offset: int, length: int) -> bytes:
        name = self.manifest["blobs"][blob][0]
        if self.encoding is not None:
            data = self.encoding.plain(name)[offset : offset + length]
        else:
            data = self.file(name)[offset : offset + length]
        check(length >= 1 and digest_of(data, digest) == digest, f"piece {digest} is damaged")
        return data

    # -------------------------------------------------------------- Leaves

    def leaf(self, index: int) -> Any:
        """Return the value of a leaf."""
        leaf = self.manifest["leaves"][index]
        if leaf["kind"] == "bytes":
            return self.storage(leaf["storage"])
        if leaf["kind"] == "str":
            return self.storage(leaf["storage"]).decode("utf-8", "surrogatepass")
        if leaf["kind"] == "bytearray":
            return bytearray(self.storage(leaf["storage"]))
        if leaf["kind"] == "io.BytesIO":
            return io.BytesIO(self.storage(leaf["storage"]))
        if leaf["kind"] == "numbers":
            (count,) = leaf["shape"]
            code = {"int64": "q", "float64": "d", "bool": "?"}[leaf["dtype"]]
            return list(struct.unpack_from(f"<{count}{code}", self.storage(leaf["storage"])))
        size, shape = itemsize(leaf["kind"], leaf["dtype"]), tuple(leaf["shape"])
        strides = leaf.get("strides")
        if 0 in shape:
            data = b""
        elif strides is None:
            start = leaf.get("offset", 0)
            data = self.storage(leaf["storage"])[start : start + size * math.prod(shape)]
            check(len(data) == size * math.prod(shape), "elements outside their storage")
        else:
            data = self._elements(leaf["storage"], leaf.get("offset", 0), size, shape, strides)
        return Tensor(leaf["kind"], leaf["dtype"], shape, data, leaf["storage"])

    def _elements(self, storage: int, start: int, size: int, shape: tuple[int, ...], strides: list[int]) -> bytes:
        """Return the elements row-major; all of them MUST lie inside the storage."""
        data = self.storage(storage)
        offsets = [start]
        for count, stride in zip(shape, strides, strict=True):
            offsets = [offset + size * i * stride for offset in offsets for i in range(count)]
        check(min(offsets) >= 0 and max(offsets) + size <= len(data), "elements outside their storage")
        return b"".join(data[offset : offset + size] for offset in offsets)

    # -------------------------------------------------------------- Files

    def files(self) -> dict[str, tuple[str, int | None, bytes]]:
        """Return for each path of a committed file its kind, its mode, and its content or where a symlink points."""
        found: dict[str, tuple[str, int | None, bytes]] = {}
        for file in self.manifest.get("files", []):
            path, kind = file["path"], file["kind"]
            for name in path.split("/"):
                check(name not in ("", ".", "..") and len(os.fsencode(name)) <= 255, f"a path that leads away: {path}")
                check(all(ord(c) >= 32 and ord(c) != 127 for c in name), "a control character")
            parent = path.rpartition("/")[0]
            check(path not in found, f"twice: {path}")
            check(not parent or found.get(parent, ("",))[0] == "directory", f"no directory for {path}")
            data = b"".join(self.storage(i) for i in file.get("storages", []))
            if kind == "symlink":
                data = os.fsencode(file["target"])
            found[path] = (kind, file.get("mode"), data)
        return found

    # -------------------------------------------------------------- Nodes

    def state(self) -> Any:
        """Return the state; every leaf must be named by exactly one node, under its own name (section "Names")."""
        named: list[int] = []
        value = self._value(self.manifest["state"], "", 0, named)
        check(sorted(named) == list(range(len(self.manifest["leaves"]))), "a leaf without a node, or with two")
        return value

    def _value(self, node: Any, name: str, depth: int, named: list[int]) -> Any:
        if node is None or isinstance(node, (bool, str, int)):
            return node
        check(isinstance(node, list), f"no node: {node}")
        tag = node[0]
        if tag == "int":
            return great_integer(node[1])
        if tag == "float":
            return _float(node[1])
        if tag == "complex":
            return complex(_float(node[1]), _float(node[2]))
        if tag == "bytes":
            return base64.b64decode(node[1], validate=True)
        if tag == "numpy":
            data = base64.b64decode(node[2], validate=True)
            check(len(data) == itemsize("numpy", node[1]), "a NumPy scalar of another size")
            return NumpyScalar(node[1], data)
        if tag == "leaf":
            check(self.manifest["leaves"][node[1]]["name"] == name, f"leaf {node[1]} is not at {name!r}")
            named.append(node[1])
            return self.leaf(node[1])
        if tag in ("set", "frozenset"):
            return set(map(key_of, node[1])) if tag == "set" else frozenset(map(key_of, node[1]))
        if tag == "bytearray":
            return bytearray(base64.b64decode(node[1], validate=True))
        if tag == "io.BytesIO":
            return io.BytesIO(base64.b64decode(node[1], validate=True))
        if tag == "decimal":
            return Decimal(node[1])
        if tag in PLAIN:
            return Plain(tag, node[1:])
        check(depth < 100, "nested more than 100 deep")
        if tag in ("list", "tuple", "deque"):
            values = [self._value(n, f"{name}[{i}]", depth + 1, named) for i, n in enumerate(node[1])]
            if tag == "deque":
                return deque(values, node[2])
            return values if tag == "list" else tuple(values)
        check(tag in ("dict", "odict", "counter", "defaultdict", "parts", "object"), f"no node: {tag}")
        items = []
        for k, child in node[1]:
            items.append((key_of(k), self._value(child, join(name, key_of(k)), depth + 1, named)))
        if tag == "parts":
            return Parts(node[2], dict(items), self._value(node[3], name, depth + 1, []))
        if tag in ("defaultdict", "object"):
            return Plain(tag, [dict(items), node[2]])
        if tag == "dict":
            return dict(items)
        if tag == "counter":
            return Counter(dict(items))
        return OrderedDict(items, self._value(node[2], name, depth + 1, []))


def _untiled(tiling: list[Any], pieces: list[bytes]) -> bytes:
    """Put a tensor together of its blocks; the last dimension is in bytes (section "Shards")."""
    shape, blocks = tiling
    whole = bytearray(math.prod(shape))
    seen = 0
    for (offsets, sizes), piece in zip(blocks, pieces, strict=True):
        places = itertools.product(*(range(a, a + n) for a, n in zip(offsets[:-1], sizes[:-1], strict=True)))
        for i, place in enumerate(places):
            at = 0
            for index, size in zip((*place, offsets[-1]), shape, strict=True):
                check(index < size, "a block that leaves its tensor")
                at = at * size + index
            whole[at : at + sizes[-1]] = piece[i * sizes[-1] : (i + 1) * sizes[-1]]
            seen += sizes[-1]
    check(seen == len(whole), "blocks that do not fill the tensor, each place once")
    return bytes(whole)


def great_integer(text: str) -> int:
    """Return an integer of any size; int() takes 4300 digits."""
    return int(Decimal(text))


def key_of(node: Any) -> Any:
    """Return a key (section "Nodes")."""
    if not isinstance(node, list):
        return node
    if node[0] == "int":
        return great_integer(node[1])
    if node[0] == "float":
        return _float(node[1])
    check(node[0] == "tuple", f"no key: {node}")
    return tuple(map(key_of, node[1]))


def key_text(key: Any) -> str:
    """Return a key that is no string as a name has it (section "Names")."""
    if isinstance(key, tuple):
        inner = ", ".join(json.dumps(part) if isinstance(part, str) else key_text(part) for part in key)
        return f"({inner},)" if len(key) == 1 else f"({inner})"
    if isinstance(key, int) and not isinstance(key, bool):
        return str(Decimal(key))
    return repr(key)


def join(name: str, key: Any) -> str:
    """Return the name of the value at `key` (section "Names")."""
    if not isinstance(key, str):
        escaped = re.sub(r"[\\\[\]]", lambda match: "\\" + match[0], key_text(key))
        return f"{name}[{escaped}]"
    escaped = re.sub(r"[\\.\[\]]", lambda match: "\\" + match[0], key) or "\\0"
    return f"{name}.{escaped}" if name else escaped


def _float(x: Any) -> float:
    if isinstance(x, str):
        value: float = struct.unpack(">d", bytes.fromhex(x))[0]
        check(not math.isfinite(value), f"bits of a finite float: {x}")
        return value
    return float(x)


def _free(value: Any) -> Any:
    if isinstance(value, list):
        return [_free(item) for item in value]
    if isinstance(value, dict):
        if list(value) == ["$float"]:
            return float(value["$float"])
        if list(value) == ["$int"]:
            return great_integer(value["$int"])
        check(not any(name.startswith("$") for name in value), f"a name that starts with $: {list(value)}")
        return {name: _free(item) for name, item in value.items()}
    return value


# ------------------------------------------------------------------ The store


def is_run(name: str) -> bool:
    """Whether `name` matches <run>."""
    return RUN.match(name) is not None and name not in (".", "..")


class Name(NamedTuple):
    """The name of the directory of a checkpoint (section "Names of checkpoints")."""

    step: int
    short: str  # empty in a draft name
    generation: int  # -1 for a draft name, which is below all others


def parse_name(text: str) -> Name | None:
    """Return what a name says; None if no checkpoint has it."""
    match = NAME.match(text)
    if match is None or int(match[1]) > 2**53:
        return None
    return Name(int(match[1]), match[2] or "", int(match[3] or 0) if match[2] else -1)


def is_tag(name: str) -> bool:
    """Whether `name` matches <tag>."""
    return (
        RUN.match(name) is not None
        and not name.isdigit()
        and name not in ("latest", "latest-valid", "latest-healthy")
        and not name.startswith(".")
        and HEX.match(name) is None
    )


def small_file(path: Path, form: str) -> dict[str, Any]:
    """Return the members of a small file (section "Digests of small files")."""
    members: dict[str, Any] = parse_json(path.read_bytes())
    claimed = members.pop("digest", None)
    body = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    check(claimed in (None, digest_of(body, "xxh3-")), f"{path} is damaged")
    check(members["format"] == form, f"{path} is no {form}")
    check(members["version"] <= 1, f"{path} is newer")
    return members


class Store:
    """A store directory. Only ``store.json``, ``checkpoints/`` and ``refs/`` are looked at."""

    def __init__(self, path: Path, remote: Callable[[str], bytes] | None = None) -> None:
        """Read ``store.json``; `remote` gives the blobs that only a remote has."""
        self.path, self.remote = path, remote
        self.settings = small_file(path / "store.json", "ckstore-store")
        known = {"checkpoint-ids", "elsewhere"}
        check(set(self.settings.get("requires", [])) <= known, "asks for what this reader does not know")
        check(self.settings["hash"] in ("xxh3_128", "blake3"), "an unknown hash")
        check(self.settings["chunk_bytes"] >= MIB and self.settings["chunk_bytes"] % MIB == 0, "a wrong chunk_bytes")

    def directories(self) -> list[tuple[str, Name, Checkpoint]]:
        """Return run, name and checkpoint of each directory that holds what its name says."""
        prefix = {"xxh3_128": "xxh3-", "blake3": "blake3-"}[self.settings["hash"]]
        found = []
        for run in filter(is_run, _names(self.path / "checkpoints")):
            if not stat.S_ISDIR(os.lstat(self.path / "checkpoints" / run).st_mode):
                continue
            for text in _names(self.path / "checkpoints" / run):
                name = parse_name(text)
                if name is None:
                    continue
                try:
                    checkpoint = Checkpoint(self.path / "checkpoints" / run / text, self.remote)
                except (FormatError, OSError, ValueError):  # damaged: another one of the step may be whole
                    continue
                says = checkpoint.manifest["run"], checkpoint.manifest["step"]
                if says == (run, name.step) and checkpoint.id.startswith(prefix + name.short):
                    found.append((run, name, checkpoint))
        return found

    def by_id(self) -> dict[tuple[str, int, str], Checkpoint]:
        """Return the directory of each id, by run, step and id.

        It is the highest complete generation without a mark, else the highest complete one, else the highest.
        """
        found: dict[tuple[str, int, str], Checkpoint] = {}
        for run, name, checkpoint in sorted(self.directories(), key=lambda one: one[1].generation):
            before = found.get((run, name.step, checkpoint.id))
            rank = (checkpoint.is_whole(), checkpoint.is_complete())
            if before is None or rank >= (before.is_whole(), before.is_complete()):
                found[run, name.step, checkpoint.id] = checkpoint
        return found

    def of_steps(self) -> dict[tuple[str, int], Checkpoint]:
        """Return the checkpoint of each step: the newest complete one, marked or not, else the newest."""
        found: dict[tuple[str, int], Checkpoint] = {}
        for (run, step, _), checkpoint in self.by_id().items():
            before = found.get((run, step))
            if before is None or (checkpoint.is_complete(), checkpoint.order) > (before.is_complete(), before.order):
                found[run, step] = checkpoint
        return found

    def checkpoints(self) -> dict[tuple[str, int], Checkpoint]:
        """Return all complete checkpoints that none of their step supersedes, by run and step."""
        return {place: checkpoint for place, checkpoint in self.of_steps().items() if checkpoint.is_complete()}

    def latest(self) -> Checkpoint:
        """Return the checkpoint with the greatest (sequence, created, id)."""
        return max(self.checkpoints().values(), key=lambda checkpoint: checkpoint.order)

    def tags(self) -> dict[str, tuple[str, int, str]]:
        """Return tag -> run, step and short id; of a tag of a draft that is empty (section "Tags")."""
        found = {}
        for tag in filter(is_tag, _names(self.path / "refs")):
            text = os.readlink(self.path / "refs" / tag)
            once, twice = r"\.\./checkpoints/([^/]+)/([^/]+)", r"\.\./checkpoints/([^/]+)/\.\./\1/([^/]+)/\.\./\2"
            match = re.fullmatch(twice, text) or re.fullmatch(once, text)
            name = parse_name(match[2]) if match else None
            check(match and is_run(match[1]) and name, f"the tag {tag} leads elsewhere")
            if match and name:
                found[tag] = (match[1], name.step, name.short)
        return found

    def tagged(self, tag: str) -> Checkpoint | None:
        """Return the checkpoint that a tag names, superseded or not, in the directory that counts; None: it dangles."""
        run, step, short = self.tags()[tag]
        if not short:
            place = run, step, -1
            ids = {one.id for other, name, one in self.directories() if (other, name.step, name.generation) == place}
            return self.by_id()[run, step, ids.pop()] if ids else self.of_steps().get((run, step))
        ids = {
            one.id for other, name, one in self.directories() if (other, name.step, name.short) == (run, step, short)
        }
        return self.by_id()[run, step, ids.pop()] if ids else None


# ------------------------------------------------------------------ A remote in a directory (docs/format/remote-v1.md)


class Remote:
    """A remote in a directory: ``remote.json``, its checkpoints, its tags and its blobs."""

    def __init__(self, path: Path) -> None:
        """Read ``remote.json``."""
        self.path = path
        self.settings = small_file(path / "remote.json", "ckstore-remote")
        check(not self.settings.get("requires"), "asks for what this reader does not know")

    def blob(self, digest: str) -> bytes:
        """Return the bytes of a blob under its digest, else under the greatest number (section "Blobs")."""
        folder = self.path / "blobs" / digest.partition("-")[2][:2]
        names = [re.fullmatch(rf"{digest}\.([1-9][0-9]{{0,8}})", name) for name in _names(folder)]
        numbers = sorted((int(name[1]) for name in names if name), reverse=True)
        tried = [folder / digest, *(folder / f"{digest}.{number}" for number in numbers)]
        found = next((path for path in tried if path.is_file()), None)
        if found is None:
            raise FormatError(f"the remote lacks {digest}")
        return found.read_bytes()

    def checkpoints(self) -> dict[tuple[str, int], Checkpoint]:
        """Return the checkpoint of each step (section "Checkpoints")."""
        found: dict[tuple[str, int], Checkpoint] = {}
        for checkpoint in self.existing():
            place = checkpoint.manifest["run"], checkpoint.manifest["step"]
            if place not in found or checkpoint.order > found[place].order:
                found[place] = checkpoint
        return found

    def existing(self) -> Iterator[Checkpoint]:
        """Yield each checkpoint whose manifest fits its key, and that was not removed."""
        for folder in sorted(self.path.glob("checkpoints/*/*/*")):
            *_, run, step, id = folder.parts
            is_removed = (folder / "dropped").exists() and not any(self.path.glob(f"claims/*/{run}/{step}/{id}/*"))
            if is_run(run) and (folder / "manifest.json").exists() and not is_removed:
                checkpoint = Checkpoint(folder, self.blob)
                if (checkpoint.manifest["run"], str(checkpoint.manifest["step"]), checkpoint.id) == (run, step, id):
                    yield checkpoint

    def tags(self) -> dict[str, str]:
        """Return the tags and the ids that they name (section "Tags and pins")."""
        files = {path.name.removesuffix(".json"): path for path in (self.path / "refs").glob("*.json")}
        return {tag: small_file(path, "ckstore-remote-tag")["id"] for tag, path in files.items() if is_tag(tag)}


def _names(directory: Path) -> list[str]:
    """Return the names in a directory; a missing one is an empty one."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
