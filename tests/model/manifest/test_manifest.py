"""What is written is read back; nothing else is ever accepted, and nothing breaks the reader."""

import copy
import gc
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.errors import BadInput, DamagedBlob, NewerFormat
from ckstore.model.canonical import canonical_json
from ckstore.model.document import MAX_DEPTH, parse_object
from ckstore.model.manifest import parse
from ckstore.model.manifest.describe import check_metadata, decoded_metadata
from ckstore.model.manifest.leaf_records import itemsize
from ckstore.model.manifest.manifest import (
    BlobRecord,
    Description,
    Extent,
    LeafRecord,
    Manifest,
    StateTexts,
    StorageRecord,
    content_digest,
    render,
)
from ckstore.model.manifest.parse import parse_manifest
from tests.model.manifests import MAPPINGS, MIB, XXH3, body_of, framed, manifests, path_name, texts

Json = Any


def digest(n: int) -> str:
    return f"xxh3-{n:032x}"


def small_manifest() -> Manifest:
    """Return one with every kind of leaf and container, two tied tensors and a storage of two chunks."""
    blobs = (BlobRecord(digest(1), 4096), BlobRecord(digest(2), MIB), BlobRecord(digest(3), 16))
    storages = (
        StorageRecord(24, (Extent(digest(10), 0, 0, 24),)),
        StorageRecord(MIB + 16, (Extent(digest(2), 1, 0, MIB), Extent(digest(3), 2, 0, 16))),
        StorageRecord(5, (Extent(digest(11), 0, 64, 5),)),
        StorageRecord(0, ()),
        StorageRecord(5, (Extent(digest(11), 0, 64, 5),)),
    )
    leaves = (
        LeafRecord("model.w", "torch", "float32", (2, 3), 0),
        LeafRecord("model.w\\.T", "torch", "float32", (3, 2), 0, 0, (1, 3)),
        LeafRecord("list[0]", "numpy", "<f4", (262148,), 1),
        LeafRecord("list[1][7]", "bytes", "", (), 2),
        LeafRecord("\\0", "str", "", (), 4),
        LeafRecord("empty", "torch", "int64", (0, 4), 3),
    )
    pairs = [["w", ["leaf", 0]], ["w.T", ["leaf", 1]]]
    state = [
        "dict",
        [
            ["model", ["odict", pairs, ["dict", [["_metadata", ["odict", [["", 1]], None]]]]]],
            ["list", ["list", [["leaf", 2], ["dict", [[7, ["leaf", 3]]]]]]],
            ["", ["leaf", 4]],
            ["empty", ["leaf", 5]],
            ["lr", ["tuple", [["float", 0.5], ["float", "7ff8000000000000"], None, True, 3]]],
            [["int", "9007199254740993"], ["complex", 1, "fff0000000000000"]],
        ],
    ]
    return Manifest(
        run="main",
        step=7,
        sequence=3,
        created="2026-11-21T09:30:00.000000Z",
        writer="test 1",
        description=Description({"loss": 2.5, "nan": math.nan}, {"a": {"$int": "9" * 20}}, "m"),
        logical_bytes=24 + MIB + 16 + 5 + 5,
        new_bytes=4096,
        reused_bytes=9,
        content=content_digest(StateTexts.of(leaves, state), storages, XXH3),
        blobs=blobs,
        storages=storages,
        leaves=leaves,
        state=state,
    )


@given(manifest=manifests())
def test_what_is_rendered_is_read_back(manifest: Manifest) -> None:
    manifest_id, data = render(manifest, XXH3)

    found, found_id = parse_manifest(data, where="x")

    assert found_id == manifest_id
    assert render(found, XXH3) == (manifest_id, data)
    no_nan = {k: repr(v) for k, v in manifest.description.metrics.items()}
    assert {k: repr(v) for k, v in found.description.metrics.items()} == no_nan
    blank = Description(metadata=manifest.description.metadata)
    assert replace(found, description=blank) == replace(manifest, description=blank)
    assert found.description.metadata == manifest.description.metadata


@given(manifest=manifests())
def test_what_is_put_together_by_hand_is_canonical_json(manifest: Manifest) -> None:
    data = render(manifest, XXH3)[1]

    assert data == framed(canonical_json(body_of(data)))


@given(manifest=manifests())
def test_the_content_is_the_digest_of_what_the_page_says(manifest: Manifest) -> None:
    document = body_of(render(manifest, XXH3)[1])
    held: dict[str, Any] = {
        "leaves": document["leaves"],
        "state": document["state"],
        "storages": [
            [nbytes, [[piece, length] for piece, _, _, length in extents]] for nbytes, extents in document["storages"]
        ],
    }
    if manifest.files:
        held["files"] = [{k: v for k, v in file.items() if k != "mtime"} for file in document["files"]]

    found = content_digest(StateTexts.of(manifest.leaves, manifest.state), manifest.storages, XXH3, manifest.files)

    assert found == XXH3.digest(canonical_json(held))


def test_every_flip_of_a_bit_is_found() -> None:
    data = render(small_manifest(), XXH3)[1]
    parse_manifest(data, where="x")

    for i, bit in itertools.product(range(len(data)), range(8)):
        flipped = bytearray(data)
        flipped[i] ^= 1 << bit
        with pytest.raises(DamagedBlob):
            parse_manifest(bytes(flipped), where="x")


def test_every_shortening_and_lengthening_is_found() -> None:
    data = render(small_manifest(), XXH3)[1]

    for wrong in [*(data[:n] for n in range(len(data))), data + b"\n", data + b" ", b" " + data]:
        with pytest.raises(DamagedBlob, match=r"^there\b.*wanted .*found "):
            parse_manifest(wrong, where="there")


# ------------------------------------------------------------------------------ mutations

_BODY = body_of(render(small_manifest(), XXH3)[1])


def _places(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        items: Any = value.items()
    else:
        items = enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += _places(child, (*path, key))
    return found


_HUGE = 1234567890123
"""Stands for an integer that Python itself would not write."""

_junk: st.SearchStrategy[Json] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 9),
        st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, 2**64, _HUGE, 1e308, math.nan, -0.5]),
        st.sampled_from(["torch", "numpy", "str", "<U1", "float32", "int", "dict", "nan", digest(2)]),
        texts,
    ),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(texts, c, max_size=2),
    max_leaves=5,
)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    body = copy.deepcopy(_BODY)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(body)
        *above, last = draw(st.sampled_from(places))
        holder: Any = body
        for key in above:
            holder = holder[key]
        kind = draw(st.sampled_from(["junk", "delete", "nudge", "twice", "move", "rename"]))
        if kind == "delete":
            del holder[last]
        elif kind == "nudge" and type(holder[last]) is int:
            holder[last] += draw(st.sampled_from([-1, 1, MIB, -MIB, 2**53]))
        elif kind == "twice" and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        elif kind == "rename" and isinstance(holder, dict):
            holder[draw(st.sampled_from(["strides", "offset", "$int", "x"]))] = holder.pop(last)
        elif kind == "move":
            source: Any = body
            for key in draw(st.sampled_from(places)):
                try:
                    source = source[key]
                except (LookupError, TypeError):
                    break
            holder[last] = copy.deepcopy(source)
        else:
            holder[last] = draw(_junk)
    return framed(json.dumps(body).replace(str(_HUGE), "9" * 5000).encode("ascii"))


def _accept_or_refuse(data: bytes) -> bool:
    try:
        manifest, manifest_id = parse_manifest(data, where="x")
    except (BadInput, NewerFormat) as error:
        refusal = str(error)
    else:
        _check_accepted(manifest, manifest_id, data)
        return True
    assert refusal.startswith("x: ")
    assert len(refusal) < 1000
    return False


def _check_accepted(manifest: Manifest, manifest_id: str, data: bytes) -> None:
    _check_by_brute_force(manifest)
    again = render(manifest, XXH3)
    assert parse_manifest(again[1], where="x")[1] == again[0]
    assert manifest_id == json.loads(data)["digest"]
    decoded_metadata(manifest.description.metadata)


def _leaves_named(node: Json, path: tuple[Any, ...] = ()) -> list[tuple[int, str]]:
    if not isinstance(node, list):
        return []
    if node[0] == "leaf":
        return [(node[1], path_name(path))]
    pairs = list(enumerate(node[1])) if node[0] in ("list", "tuple") else node[1] if node[0] in MAPPINGS else []
    return [found for key, child in pairs for found in _leaves_named(child, (*path, key))]


def _check_by_brute_force(manifest: Manifest) -> None:
    """Check what the page says about bytes and names, slowly and without the reader's code."""
    for storage in manifest.storages:
        assert sum(e.length for e in storage.extents) == storage.nbytes
        assert all(e.length % MIB == 0 for e in storage.extents[:-1])
        for e in storage.extents:
            assert e.length >= 1
            assert 0 <= e.offset <= e.offset + e.length <= manifest.blobs[e.blob].nbytes
    assert max(Counter(b.digest for b in manifest.blobs).values(), default=1) == 1
    assert sorted(_leaves_named(manifest.state)) == [(i, leaf.name) for i, leaf in enumerate(manifest.leaves)]
    for leaf in manifest.leaves:
        size = itemsize(leaf.kind, leaf.dtype)
        if size is None or math.prod(leaf.shape) > 1000 or 0 in leaf.shape:
            continue
        strides = leaf.strides
        if strides is None:
            strides = tuple(math.prod(leaf.shape[i + 1 :]) for i in range(len(leaf.shape)))
        for index in itertools.product(*map(range, leaf.shape)):
            at = leaf.offset + size * sum(i * s for i, s in zip(index, strides, strict=True))
            assert 0 <= at <= at + size <= manifest.storages[leaf.storage].nbytes


@settings(suppress_health_check=[HealthCheck.large_base_example, HealthCheck.too_slow])
@given(data=_mutated())
def test_a_mutated_manifest_is_valid_or_refused_with_a_typed_error(data: bytes) -> None:
    _accept_or_refuse(data)


def test_every_member_and_value_replaced_by_each_kind_is_valid_or_refused() -> None:
    accepted = refused = 0
    values: list[Json] = [
        *(None, True, -1, 0, 1, 2**53, 0.5, "", "x", [], {}, [1], ["leaf", 0], "main"),
    ]
    for place in _places(_BODY):
        for value in values:
            body = copy.deepcopy(_BODY)
            holder: Any = body
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = value
            if _accept_or_refuse(framed(body)):
                accepted += 1
            else:
                refused += 1

    assert refused > 5 * accepted > 0


def test_every_member_is_needed() -> None:
    for name in _BODY:
        body = {k: v for k, v in _BODY.items() if k != name}
        with pytest.raises(BadInput, match=f"there: .*{name}|{name.split('_')[0]}"):
            parse_manifest(framed(body), where="there")


# ------------------------------------------------------------------------------ refused, one by one

Change = Callable[[dict[str, Any]], object]


def _set(*path: Any) -> Change:
    *above, last, value = path

    def change(body: dict[str, Any]) -> None:
        holder: Any = body
        for key in above:
            holder = holder[key]
        holder[last] = value

    return change


_deep_key: Any = 1
for _ in range(9):
    _deep_key = ["tuple", [_deep_key]]
_deep: Json = ["list", []]
for _ in range(MAX_DEPTH - 1):
    _deep = ["list", [_deep]]


@pytest.mark.parametrize(
    "change, message",
    [
        (_set("format", "zarr"), "format: wanted 'ckstore-manifest', found 'zarr'"),
        (_set("version", 0), "version: wanted an integer from 1, found 0"),
        (_set("version", True), "version: wanted an integer from 1, found True"),
        (_set("run", "a/b"), "a run name has .* got 'a/b'"),
        (_set("run", ".."), r"a run name has .* got '\.\.'"),
        (_set("step", -1), "step: wanted an integer from 0 to 2.53, found -1"),
        (_set("sequence", 0), r"sequence: wanted an integer from 1 to 2\^53 - 1, found 0"),
        (_set("created", "2026-02-30T00:00:00.000000Z"), "created: wanted a time that exists"),
        (_set("created", "yesterday"), "created: wanted YYYY"),
        (_set("parent", "main@3"), "parent: wanted an id or null, found 'main@3'"),
        (_set("training", "first"), "training: wanted 32 hexadecimal digits, or no such member, found 'first'"),
        (_set("training", None), "training: wanted 32 hexadecimal digits, or no such member, found None"),
        (_set("metrics", "loss", "NaN"), r"metrics\['loss'\]: wanted a number, .* found 'NaN'"),
        (_set("metadata", "a", {"$int": "7"}), "no member with .*, found '.int'"),
        (_set("metadata", "a", {"$float": "nan", "b": 1}), "no member with .*, found '.float'"),
        (_set("logical_bytes", 5), "logical_bytes: wanted the sum of the storages, 1048626"),
        (_set("content", "blake3-" + "0" * 64), "content: wanted a digest xxh3"),
        (_set("blobs", 0, [digest(2), 4096]), "each blob once"),
        (_set("blobs", 0, [digest(7), 0]), "size of blobs.0.: wanted an integer from 1 to 2147483648, found 0"),
        (_set("blobs", 0, ["xxh3-FF", 9]), "blobs.0.: wanted a digest xxh3"),
        (_set("storages", 0, [25, _BODY["storages"][0][1]]), "add up to 25, found 24"),
        (_set("storages", 0, 1, 0, 2, 4073), "an end within the 4096 bytes of its blob, found 4097"),
        (_set("storages", 0, 1, 0, 1, 3), "blob of storages.0.: wanted an index below 3, found 3"),
        (_set("storages", 1, 1, 0, 3, MIB - 1), "all but the last to be a multiple of 1048576"),
        (_set("storages", 3, 0, False), "size of storages.3.: wanted an integer from 0, found False"),
        (_set("storages", 3, 1, [[digest(2), 1, 0, 0]]), "offset >= 0, length >= 1"),
        (_set("leaves", 5, "offset", -8), "offset of leaf 'empty': wanted an integer from 0, found -8"),
        (_set("leaves", 0, "shape", [2, 4]), "'model.w': .* within the 24 bytes .* bytes 0 to 32"),
        (_set("leaves", 1, "strides", [1, 4]), "within the 24 bytes .* bytes 0 to 28"),
        (_set("leaves", 1, "strides", [-1, 3]), "an array of 2 strides"),
        (_set("leaves", 1, "strides", [1]), "an array of 2 strides"),
        (_set("leaves", 0, "offset", 4), "within the 24 bytes .* bytes 4 to 28"),
        (_set("leaves", 0, "shape", [2**40, 0, 2**40]), "less than 2.63 elements"),
        (_set("leaves", 0, "dtype", "<f4"), "a dtype of kind torch, found '<f4'"),
        (_set("leaves", 2, "dtype", "float32"), "a dtype of kind numpy, found 'float32'"),
        (_set("leaves", 2, "dtype", "|O8"), "a dtype of kind numpy"),
        (_set("leaves", 3, "offset", 1), "offset of leaf 'list.1..7.': wanted none for kind bytes"),
        (_set("leaves", 0, "kind", "pickle"), "kind of leaf 'model.w': wanted torch, numpy"),
        (_set("leaves", 0, "name", "model.v"), "state at 'model.w': wanted the leaf of that name"),
        (_set("leaves", 5, "name", "model.w"), "each name once, found 'model.w'"),
        (_set("state", 1, 3, 1, None), "wanted one node that names the leaf 'empty', found none"),
        (_set("state", ["leaf", 6]), "an index below 6, found 6"),
        (_set("state", ["list", [_deep]]), "containers at most 100 deep"),
        (_set("state", ["float", "3ff0000000000000"]), "a node"),
        (_set("state", ["int", "7"]), "a node"),
        (_set("state", ["int", "0" + "9" * 20]), "a node"),
        (_set("state", ["bytes", "A"]), "a node"),
        (_set("state", ["numpy", "<f4", "AAAA"]), "a node"),
        (_set("state", ["set", {}]), "a node"),
        *[
            (_set("state", node), "wanted a node, found ")
            for node in list[Json]([
                *(["leaf"], ["leaf", 0, 0], ["list"], ["list", [], 0], ["list", {}], ["tuple", [], 0]),
                *(["dict"], ["dict", [], None], ["counter"], ["odict", []], ["odict", [], None, 0]),
                *([], [["leaf", 0]], [1]),
                *(["float"], ["float", 1.0, 0], ["float", None], ["float", True], ["float", "7ff"]),
                *(["int", "9" * 20, 0], ["int", 9], ["x", "9" * 20], ["x", 1.0], ["x", 1.0, 1.0], ["x", "AAE="]),
                *(["complex", 1.0], ["complex", 1.0, 2.0, 3.0], ["complex", 1.0, None], ["complex", None, 1.0]),
                *(["bytes", 3], ["bytes", "AAE=", 0], ["bytes", "AAE"], ["bytes", "é"], ["bytes", "AA E="]),
                *(["numpy", "<f4", 3], ["numpy", 3, "AAAAAA=="], ["numpy", None, None], ["numpy", "<f4"]),
                *(["numpy", "|O8", "AAAAAAAAAAA="], ["x", "<f4", "AAAAAA=="], {"a": 1}),
            ])
        ],
        (_set("state", ["odict", [], ["dict", [["a", ["list", [["leaf", 0]]]]]]]), "no leaf among the attributes"),
        (_set("state", ["dict", {}]), "an array of .key, node."),
        (_set("state", ["dict", [["a"]]]), "an array of .key, node."),
        (_set("state", ["dict", ["ab"]]), "an array of .key, node."),
        (_set("state", ["dict", [[["int", "7"], 1]]]), "a string, an integer or"),
        (_set("state", ["dict", [[["x", "9" * 20], 1]]]), "a string, an integer or"),
        (_set("state", ["dict", [[["int", "9" * 20, 1], 1]]]), "a string, an integer or"),
        (_set("state", ["dict", [[["int", "9" * 20], 1], [["int", "9" * 20], 1]]]), "each key once"),
        (_set("state", ["leaf", -1]), "an index below 6, found -1"),
        (_set("state", ["leaf", True]), "an index below 6, found True"),
        (_set("state", 1.5), "state at '': wanted a node, found 1.5"),
        (_set("state", ["dict", [["a", 1], ["a", 2]]]), "each key once"),
        (_set("state", ["dict", [[["set", []], 1]]]), "a string, an integer or"),
        (_set("state", ["dict", [[1, 1], [True, 1]]]), "each key once"),
        (_set("state", ["dict", [[1, 1], [["float", 1.0], 1]]]), "each key once"),
        (_set("state", ["dict", [[["float", "7ff8000000000000"], 1]]]), "another key"),
        (_set("state", ["dict", [[_deep_key, 1]]]), "another key"),
        (_set("state", ["dict", [[["tuple", [1, ["leaf", 0]]], 1]]]), "another key"),
        (_set("state", ["defaultdict", [], "open"]), "null or one of"),
        (_set("state", ["deque", [1, 2], 1]), "a node"),
        (_set("state", ["deque", [1], 1.5]), "a node"),
        (_set("state", ["parts", [[1, 1]], "sparse_coo", None]), "names of parts that are strings"),
        (_set("state", ["parts", [], "", None]), "a class or kind of 1 to"),
        (_set("state", ["parts", [], "x", ["leaf", 0]]), "no leaf among the attributes"),
        *[
            (_set("state", node), "wanted a node, found ")
            for node in list[Json]([
                *(["set", [1, True]], ["set", [["list", []]]], ["frozenset", [None, None]], ["set", [["leaf", 0]]]),
                *(["io.BytesIO", "A"], ["io.BytesIO", None], ["torch.layout", "load"], ["torch.qscheme", 1]),
                *(["bytearray", "A"], ["bytearray", 1], ["decimal", "1,0"], ["decimal", "1E999999999999999999"]),
                *(["decimal", 1], ["date", "2026-13-01"], ["date", "20260101"], ["timedelta", 0, 86400, 0]),
                *(["timedelta", 10**12, 0, 0], ["timedelta", 0, 0], ["timedelta", 0, 0, True]),
                *(["datetime", "2026-01-01", 0, None], ["datetime", "2026-01-01T00:00:00.000000", 2, None]),
                *(["datetime", "2026-01-01T00:00:00.000000+01:00", 0, None],),
                *(["datetime", "2026-01-01T00:00:00.000000", 0, "../../etc/passwd"],),
                *(["datetime", "2026-01-01T00:00:00.000000", 0, "/etc/passwd"],),
                *(["path", "WindowsPath", "a"], ["path", "PosixPath", "a//b"], ["path", "PosixPath", 1]),
                *(["torch.dtype", "load"], ["torch.device", "a b"], ["torch.Size", [1.5]], ["torch.Size", 1]),
                *(["numpy.str_", 1], ["torch.load", "x"]),
            ])
        ],
        (_set("state", ["odict", [], ["list", []]]), "attributes that are null or a dict"),
        (_set("state", ["odict", [], ["dict", [["a", ["leaf", 0]]]]]), "no leaf among the attributes"),
    ],
)  # fmt: skip
def test_what_the_page_does_not_allow_is_refused(change: Change, message: str) -> None:
    body = copy.deepcopy(_BODY)
    change(body)
    with pytest.raises(BadInput, match=message) as caught:
        parse_manifest(framed(body), where="there")

    assert str(caught.value).startswith("there: ")


@pytest.mark.parametrize(
    "body, message",
    [
        (b'{"a":1,"a":1}', "the member 'a' twice"),
        (b'{"a":9007199254740993}', "an integer outside .2.53"),
        (b'{"a":' + b"9" * 100_000 + b"}", "an integer outside .2.53"),
        (b'{"a":1e999}', "a number that no float holds"),
        (b'{"a":NaN}', "NaN, which is not JSON"),
        (b'{"a":-Infinity}', "-Infinity, which is not JSON"),
        ('{"a":"é"}'.encode(), "wanted JSON in ASCII"),
        (b"[]", "wanted a JSON object, found .."),
        (b'{"a":1', "wanted JSON"),
        (b"", "wanted JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    ],
)
def test_what_is_not_strict_json_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        parse_manifest(framed(body), where="there")

    assert len(str(caught.value)) < 500


def test_a_newer_version_is_refused_before_its_content_is_judged() -> None:
    with pytest.raises(NewerFormat, match=r"there: .* up to 1, found version 2"):
        parse_manifest(framed({"format": "ckstore-manifest", "version": 2}), where="there")


def test_members_that_the_page_does_not_name_are_ignored() -> None:
    body = copy.deepcopy(_BODY)
    expected = parse_manifest(framed(body), where="x")[0]
    body["extra"] = {"$x": [1, {"y": None}]}
    body["leaves"][0]["extra"] = 1

    found = parse_manifest(framed(body), where="x")[0]

    assert render(found, XXH3) == render(expected, XXH3)


def test_a_manifest_that_is_too_long_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "MANIFEST_MAX_BYTES", 100)
    with pytest.raises(BadInput, match="wanted at most 100 bytes, found 101"):
        parse_manifest(b"x" * 101, where="x")

    data = framed(_BODY)
    monkeypatch.setattr(parse, "MANIFEST_MAX_BYTES", len(data))
    assert parse_manifest(data, where="x")[0].step == 7


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_only_while_a_manifest_is_read(monkeypatch: pytest.MonkeyPatch, enabled: bool) -> None:
    seen = []

    def parse_and_look(data: memoryview, *, where: str) -> dict[str, Any]:
        seen.append(gc.isenabled())
        return parse_object(data, where=where)

    monkeypatch.setattr(parse, "parse_object", parse_and_look)
    body = copy.deepcopy(_BODY)
    (gc.enable if enabled else gc.disable)()
    try:
        parse_manifest(framed(body), where="x")
        after = gc.isenabled()
        with pytest.raises(BadInput):
            parse_manifest(framed({**body, "step": -1}), where="x")
        after_error = gc.isenabled()
    finally:
        gc.enable()

    assert seen == [False] * 2
    assert after == after_error == enabled


def test_a_state_may_be_a_hundred_deep_and_is_read_from_a_deep_stack() -> None:
    body = copy.deepcopy(_BODY)
    body.update(state=_deep, leaves=[], storages=[], logical_bytes=0)
    data = framed(body)

    def down(levels: int) -> Manifest:
        return down(levels - 1) if levels else parse_manifest(data, where="x")[0]

    assert down(300).state == _deep


def test_a_long_key_above_many_empty_containers_costs_nothing() -> None:
    body = copy.deepcopy(_BODY)
    wide = ["dict", [["k" * MIB, ["list", [["list", []]] * 20_000]]]]
    body.update(state=wide, leaves=[], storages=[], logical_bytes=0)

    # Twenty thousand names of 1 MiB would be 20 GB of copying, and a time-out.
    with pytest.raises(BadInput, match="names of at most"):
        parse_manifest(framed(body), where="x")


def test_negative_strides_of_numpy_are_inside_or_refused() -> None:
    body = copy.deepcopy(_BODY)
    leaf = {"kind": "numpy", "dtype": "<i4", "shape": [6], "strides": [-1], "storage": 0, "name": ""}
    body.update(state=["leaf", 0], leaves=[leaf])
    leaf["offset"] = 20

    assert parse_manifest(framed(body), where="x")[0].leaves[0].strides == (-1,)
    leaf["offset"] = 16
    with pytest.raises(BadInput, match="bytes -4 to 20"):
        parse_manifest(framed(body), where="x")


def test_checked_metadata_is_what_was_given() -> None:
    assert check_metadata({"a": [{"$float": "-inf"}]}, "x") == {"a": [{"$float": "-inf"}]}
