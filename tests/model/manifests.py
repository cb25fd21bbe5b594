"""Drawn manifests that keep to the format, made without the code that checks them."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.dtypes import TORCH_ITEMSIZE
from ckstore.model.manifest.manifest import (
    BlobRecord,
    Description,
    Extent,
    LeafKind,
    LeafRecord,
    Manifest,
    StorageRecord,
)
from ckstore.model.names import MAX_SEQUENCE

XXH3 = ALGORITHMS["xxh3_128"]
MIB = 2**20
NUMPY_ITEMSIZE = {"|b1": 1, "<f4": 4, ">i8": 8, "<M8[ns]": 8, "<U5": 20, "|S3": 3, "<c16": 16}

MAPPINGS = ("dict", "counter", "odict")

LEAF = object()
"""Stands in a drawn state for a leaf that is not made yet."""

# No pairs of surrogates: JSON makes one character of those, and the writer refuses them.
texts = st.text(max_size=6) | st.sampled_from(
    ["", ".", "\\", "[0]", "a.b", "a\\.b", "\\0", "\ud800", "$x", "é", "\x00", '"']
)
safe_ints = st.integers(-(2**53), 2**53)
finite = st.floats(allow_nan=False, allow_infinity=False)
big_decimals = st.integers(2**53 + 1, 2**70).map(str) | st.integers(-(2**70), -(2**53) - 1).map(str)
not_finite_bits = st.sampled_from(["7ff8000000000000", "7ff0000000000000", "fff0000000000000"])
float_parts = finite | safe_ints | not_finite_bits
digests = st.integers(0, 2**128 - 1).map(lambda n: f"xxh3-{n:032x}")

plain_nodes: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    safe_ints,
    big_decimals.map(lambda d: ["int", d]),
    float_parts.map(lambda x: ["float", x]),
    st.tuples(float_parts, float_parts).map(lambda z: ["complex", *z]),
    st.sampled_from([["bytes", ""], ["bytes", "AAE="], ["bytes", "//79"]]),
    st.sampled_from([["numpy", "<f4", "AACAPw=="], ["numpy", "|b1", "AQ=="]]),
)
keys: st.SearchStrategy[Any] = texts | safe_ints | big_decimals.map(lambda d: ["int", d])


def _each_key_once(pairs: list[list[Any]]) -> list[list[Any]]:
    return list({repr(pair[0]): pair for pair in pairs}.values())


def _pairs(children: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    pairs: st.SearchStrategy[list[Any]] = st.tuples(keys, children).map(list)
    return st.lists(pairs, max_size=4).map(_each_key_once)


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    attributes = st.none() | _pairs(plain_nodes).map(lambda p: ["dict", p])
    return st.one_of(
        st.lists(children, max_size=4).map(lambda c: ["list", c]),
        st.lists(children, max_size=4).map(lambda c: ["tuple", c]),
        _pairs(children).map(lambda p: ["dict", p]),
        _pairs(children).map(lambda p: ["counter", p]),
        st.tuples(_pairs(children), attributes).map(lambda p: ["odict", *p]),
    )


trees: st.SearchStrategy[Any] = st.recursive(plain_nodes | st.just(LEAF), _containers, max_leaves=12)


def path_name(path: tuple[Any, ...]) -> str:
    """Return the name of a path as the page has it; keys are JSON, an index of a list is an int."""
    name = ""
    for i, key in enumerate(path):
        if isinstance(key, str):
            escaped = "".join("\\" + c if c in "\\.[]" else c for c in key) or "\\0"
            name += ("." if i else "") + escaped
        else:
            name += f"[{key[1] if isinstance(key, list) else key}]"
    return name


def fill(tree: Any, make: Callable[[str], int], path: tuple[Any, ...] = ()) -> Any:
    """Return `tree` with a leaf node for each `LEAF`; `make` gives the number for a name."""
    if tree is LEAF:
        return ["leaf", make(path_name(path))]
    if not isinstance(tree, list) or tree[0] not in ("list", "tuple", *MAPPINGS):
        return tree
    if tree[0] in ("list", "tuple"):
        return [tree[0], [fill(child, make, (*path, i)) for i, child in enumerate(tree[1])]]
    return [tree[0], [[k, fill(c, make, (*path, k))] for k, c in tree[1]], *tree[2:]]


@dataclass
class _Bytes:
    """Blobs and storages of a manifest in the making.

    Attributes:
        alone: Storages that only tensors could share.
    """

    blobs: list[BlobRecord]
    storages: list[StorageRecord]
    alone: set[int] = field(default_factory=set)

    def add(self, nbytes: int, piece: str, cut_bytes: int) -> int:
        extents = []
        for start in range(0, nbytes, cut_bytes):
            length = min(cut_bytes, nbytes - start)
            blob = BlobRecord(XXH3.digest(f"{piece}{start}{length}".encode()), 64 + length)
            if blob not in self.blobs:
                self.blobs.append(blob)
            extents.append(Extent(piece, self.blobs.index(blob), 64, length))
        self.storages.append(StorageRecord(nbytes, tuple(extents)))
        return len(self.storages) - 1


@st.composite
def leaf_records(draw: st.DrawFn, name: str, made: _Bytes) -> LeafRecord:
    kinds: list[LeafKind] = ["torch", "numpy", "bytes", "str"]
    kind = draw(st.sampled_from(kinds))
    piece = draw(digests)
    if kind in ("bytes", "str"):
        storage = made.add(draw(st.integers(0, 9)), piece, MIB)
        made.alone.add(storage)
        return LeafRecord(name, kind, "", (), storage)
    table = TORCH_ITEMSIZE if kind == "torch" else NUMPY_ITEMSIZE
    dtype = draw(st.sampled_from(sorted(table)))
    itemsize = table[dtype]
    sizes: st.SearchStrategy[int] = st.integers(0, 3) | st.just(2000)
    shape = tuple(draw(st.lists(sizes, max_size=3)))
    strided: bool = draw(st.booleans())
    strides: tuple[int, ...] | None = None
    reach = math.prod(shape)
    if strided:
        strides = tuple(draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape))))
        reach = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
    offset = itemsize * draw(st.integers(0, 3))
    need = offset + reach * itemsize if math.prod(shape) else 0
    fitting = [i for i, s in enumerate(made.storages) if s.nbytes >= need and i not in made.alone]
    shared: bool = draw(st.booleans())
    if fitting and shared and kind == "torch":
        storage = draw(st.sampled_from(fitting))
    else:
        cut_bytes = MIB * draw(st.integers(1, 2))
        storage = made.add(need + draw(st.sampled_from([0, 0, 7])), piece, cut_bytes)
        if kind == "numpy":
            made.alone.add(storage)
    return LeafRecord(name, kind, dtype, shape, storage, offset, strides)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        safe_ints,
        finite,
        texts,
        st.sampled_from(["nan", "inf", "-inf"]).map(lambda w: {"$float": w}),
        big_decimals.map(lambda d: {"$int": d}),
    ),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(texts.filter(lambda k: not k.startswith("$")), c, max_size=3),
    max_leaves=6,
)
descriptions = st.builds(
    Description,
    metrics=st.dictionaries(texts, safe_ints | st.floats(), max_size=3),
    metadata=st.dictionaries(texts.filter(lambda k: not k.startswith("$")), json_values, max_size=3),
    message=texts,
    parent=st.none() | digests,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Draw a manifest as a writer could make it."""
    made = _Bytes([], [])
    leaves: list[LeafRecord] = []

    def make(name: str) -> int:
        leaves.append(draw(leaf_records(name, made)))
        return len(leaves) - 1

    state = fill(draw(trees), make)
    return Manifest(
        run=draw(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)),
        step=draw(st.integers(0, 2**53)),
        sequence=draw(st.integers(1, MAX_SEQUENCE)),
        created="2026-11-21T09:30:00.000000Z",
        writer="test 1",
        description=draw(descriptions),
        logical_bytes=sum(s.nbytes for s in made.storages),
        new_bytes=draw(st.integers(0, 2**40)),
        reused_bytes=draw(st.integers(0, 2**40)),
        content=draw(digests),
        blobs=tuple(made.blobs),
        storages=tuple(made.storages),
        leaves=tuple(leaves),
        state=state,
    )


def body_of(data: bytes) -> dict[str, Any]:
    """Return the JSON of the manifest proper in the bytes of a ``manifest.json``."""
    body: dict[str, Any] = json.loads(data)["manifest"]
    return body


def framed(body: object) -> bytes:
    """Return ``manifest.json`` for any `body`, JSON or bytes, with a digest that fits."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode("ascii")
    return b'{"digest":"' + XXH3.digest(raw).encode() + b'","manifest":' + raw + b"}\n"
