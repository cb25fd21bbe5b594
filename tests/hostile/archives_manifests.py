"""Stores with forged manifests, annotations, pins and settings whose digests are right."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

from ckstore.model.digest import algorithm_named
from tests.hostile.scene import Builder, Scene
from tests.support.checkpoint_dirs import checkpoint_dir, path_in_store

_XXH3 = algorithm_named("xxh3_128")
_MIB = 2**20
Members = dict[str, Any]


def digest(data: bytes) -> str:
    """Return the digest of some bytes."""
    return _XXH3.digest(data)


def framed(body: bytes, algorithm: str = "xxh3_128") -> bytes:
    """Return ``manifest.json`` around a body, with the digest of it."""
    return b'{"digest":"' + algorithm_named(algorithm).digest(body).encode() + b'","manifest":' + body + b"}\n"


def dumps(value: object) -> bytes:
    """Return canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def members_of(blob: bytes, **more: Any) -> Members:
    """Return a manifest of main@3 with one blob, one storage that is all of it, and one leaf of its bytes."""
    name = digest(blob)
    members: Members = {
        "format": "ckstore-manifest",
        "version": 1,
        "run": "main",
        "step": 3,
        "sequence": 3,
        "created": "2026-11-22T10:00:00.000000Z",
        "writer": "another",
        "parent": None,
        "message": "",
        "metrics": {"loss": 0.5},
        "metadata": {},
        "new_bytes": 0,
        "reused_bytes": 0,
        "content": digest(b"content"),
        "blobs": [[name, len(blob)]],
        "storages": [[len(blob), [[name, 0, 0, len(blob)]]]],
        "leaves": [tensor("w", [len(blob)])],
        "state": ["dict", [["w", ["leaf", 0]]]],
    }
    members |= more
    members.setdefault("logical_bytes", sum(storage[0] for storage in members["storages"]))
    return members


def tensor(name: str, shape: list[int], dtype: str = "uint8", **more: Any) -> Members:
    """Return a leaf."""
    kind = "numpy" if dtype[0] in "<>|" else "torch"
    return {"name": name, "kind": kind, "dtype": dtype, "shape": shape, "storage": 0, **more}


def text(name: str, kind: str, storage: int = 0) -> Members:
    """Return a leaf of bytes or text."""
    return {"name": name, "kind": kind, "storage": storage}


def named(leaves: list[Members]) -> Members:
    """Return leaves ``a0``, ``a1``, … and the state that names them."""
    for i, leaf in enumerate(leaves):
        leaf["name"] = f"a{i}"
    return {"leaves": leaves, "state": ["dict", [[f"a{i}", ["leaf", i]] for i in range(len(leaves))]]}


def publish(scene: Scene, body: bytes, blobs: tuple[bytes, ...], step: str = "3", algorithm: str = "xxh3_128") -> None:
    """Lay the checkpoint main@3 into the store, with its blobs."""
    folder = checkpoint_dir(scene.store, "main", step)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "blobs").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(framed(body, algorithm))
    for blob in blobs:
        path = folder / "blobs" / algorithm_named(algorithm).digest(blob)
        path.write_bytes(blob)
        os.chmod(path, 0o444)
        os.utime(path, (10**9, 10**9))


def forged(make: Callable[[], Members], blob: bytes = b"x" * 4096) -> Builder:
    """A further checkpoint, main@3, with what `make` returns in its manifest."""
    return lambda scene: publish(scene, dumps(members_of(blob, **make())), (blob,))


def _of_files(files: list[Members], **more: Any) -> Callable[[], Members]:
    return lambda: {"leaves": [], "state": ["dict", []], "files": files, **more}


def _a_file(path: str, **more: Any) -> Members:
    return {"path": path, "kind": "file", "mode": 420, "storages": [0], **more}


def _raw(body: Callable[[], bytes]) -> Builder:
    return lambda scene: publish(scene, body(), (b"x" * 4096,))


def _state(state: Callable[[], Any], **more: Any) -> Callable[[], Members]:
    return lambda: {"leaves": [], "state": state(), **more}


def _nested(levels: int) -> Any:
    node: Any = ["list", []]
    for _ in range(levels - 1):
        node = ["list", [node]]
    return node


_ZEROS = bytes(_MIB)


def _repeated(times: int) -> Callable[[], Members]:
    """One piece of 1 MiB so many times: a tensor of zeros looks like this."""
    piece = [digest(_ZEROS), 0, 0, _MIB]
    size = times * _MIB
    return lambda: {"storages": [[size, [piece] * times]], "leaves": [tensor("w", [size])]}


def _many_storages(count: int, leaf: Callable[[int], Members]) -> Callable[[], Members]:
    """So many storages of the same piece, and a leaf of each."""
    piece = [digest(_ZEROS), 0, 0, _MIB]
    return lambda: {"storages": [[_MIB, [piece]]] * count, **named([leaf(i) for i in range(count)])}


def _document(name: str, make: Callable[[], Members]) -> Builder:
    """One of the small documents, without a digest of its own."""

    def build(scene: Scene) -> None:
        path_in_store(scene.store, name).unlink(missing_ok=True)
        path_in_store(scene.store, name).write_bytes(dumps(make()))

    return build


def _changed_document(name: str, **more: Any) -> Builder:
    def build(scene: Scene) -> None:
        path = path_in_store(scene.store, name)
        members = json.loads(path.read_bytes())
        members.pop("digest", None)
        path.unlink()
        path.write_bytes(dumps({**members, **more}))

    return build


def _other_hash(scene: Scene) -> None:
    """A checkpoint of a store that hashes with blake3."""
    blob = b"y" * 4096
    name = algorithm_named("blake3").digest(blob)
    members = members_of(blob, content=algorithm_named("blake3").digest(b"content"))
    members |= {"blobs": [[name, len(blob)]], "storages": [[len(blob), [[name, 0, 0, len(blob)]]]]}
    publish(scene, dumps(members), (blob,), algorithm="blake3")


def _annotations(**members: Any) -> Builder:
    whole = {"format": "ckstore-annotations", "version": 1, "metrics": {}, "notes": [], **members}
    return _document("checkpoints/main/2/annotations.json", lambda: whole)


_W = 4096

CASES: dict[str, Builder] = {
    # ---------------------------------------------------------------------------------------- shapes and strides
    "one tensor of 2^61 elements, all in one place": forged(lambda: {"leaves": [tensor("w", [2**61], strides=[0])]}),
    "one array of 2^60 elements, all in one place": forged(
        lambda: {"leaves": [tensor("w", [2**60], "<f4", strides=[0])]}
    ),
    "an array of 2^62 elements of 8 bytes": forged(lambda: {"leaves": [tensor("w", [2**62], "<f8", strides=[0])]}),
    "windows that overlap": forged(lambda: {"leaves": [tensor("w", [2**30, 4096], strides=[0, 1])]}),
    "windows that overlap by all but one": forged(lambda: {"leaves": [tensor("w", [2048, 2048], strides=[1, 1])]}),
    "windows of 2^40 rows of floats": forged(lambda: {"leaves": [tensor("w", [2**40, 8], "float32", strides=[0, 1])]}),
    "an array of windows": forged(lambda: {"leaves": [tensor("w", [2**40, 8], "<f4", strides=[0, 1])]}),
    "no elements, 2^62 in the other dimension": forged(lambda: {"leaves": [tensor("w", [2**62, 0])]}),
    "no elements, 2^62 in the other dimension of an array": forged(
        lambda: {"leaves": [tensor("w", [2**62, 0], "<f8")]}
    ),
    "no elements, three dimensions of 2^20": forged(
        lambda: {"leaves": [tensor("w", [2**20, 2**20, 0, 2**20], "complex128")]}
    ),
    "no elements, three dimensions of 2^20 of an array": forged(
        lambda: {"leaves": [tensor("w", [2**20, 2**20, 0, 2**20], "<U1000")]}
    ),
    "a product that overflows": forged(lambda: {"leaves": [tensor("w", [2**32, 2**32, 2**32], strides=[0, 0, 0])]}),
    "2000 dimensions": forged(lambda: {"leaves": [tensor("w", [1] * 2000)]}),
    "65 dimensions of an array": forged(lambda: {"leaves": [tensor("w", [1] * 65, "<f4")]}),
    "strides that go back": forged(lambda: {"leaves": [tensor("w", [8], "<f4", strides=[-1], offset=64)]}),
    "strides that go back too far": forged(lambda: {"leaves": [tensor("w", [8], "<f4", strides=[-3], offset=64)]}),
    "strides of 2^62": forged(lambda: {"leaves": [tensor("w", [1, 2], strides=[2**53, 1])]}),
    "an offset that no element can have": forged(lambda: {"leaves": [tensor("w", [8], "float64", offset=3)]}),
    "items of 2 GiB": forged(lambda: {"leaves": [tensor("w", [0], "|S2147483647")]}),
    "a scalar of 2 GiB items": forged(lambda: {"leaves": [tensor("w", [], "|S2147483647")]}),
    # ---------------------------------------------------------------------------------------- bytes counted often
    "100000 extents of one piece": forged(_repeated(100_000), _ZEROS),
    "a hundred extents of one piece": forged(_repeated(100), _ZEROS),
    "20000 tensors of one place": forged(lambda: named([tensor("", [_W]) for _ in range(20_000)])),
    "20000 views that overlap": forged(
        lambda: named([tensor("", [_MIB - 20_000], offset=i) for i in range(20_000)]), _ZEROS
    ),
    "100 views that overlap": forged(lambda: named([tensor("", [4000], offset=i) for i in range(96)])),
    "20000 tensors of 2^50 elements of one place": forged(
        lambda: named([tensor("", [2**50], strides=[0]) for _ in range(20_000)])
    ),
    "20000 texts of one storage": forged(lambda: named([text("", "str") for _ in range(20_000)]), b"x" * _MIB),
    "20000 bytes of one storage": forged(lambda: named([text("", "bytes") for _ in range(20_000)]), b"x" * _MIB),
    "20000 arrays of one storage": forged(lambda: named([tensor("", [_MIB], "|u1") for _ in range(20_000)]), _ZEROS),
    "one storage as everything": forged(
        lambda: named([tensor("", [_W]), tensor("", [_W], "|u1"), text("", "str"), text("", "bytes")])
    ),
    "20000 storages of one piece": forged(_many_storages(20_000, lambda i: tensor("", [_MIB], storage=i)), _ZEROS),
    "20000 texts of one piece": forged(_many_storages(20_000, lambda i: text("", "str", i)), _ZEROS),
    "a text of characters of 4 bytes": forged(lambda: {"leaves": [text("w", "str")]}, "\U0001f600".encode() * 2**18),
    "a text that is no UTF-8": forged(lambda: {"leaves": [text("w", "str")]}, b"\xff" * _W),
    "a file of a million times one storage": forged(
        _of_files([_a_file("big", storages=[0] * 1_000_000)], logical_bytes=_MIB), _ZEROS
    ),
    "20000 files of one storage": forged(_of_files([_a_file(f"f{i}") for i in range(20_000)]), _ZEROS),
    "a storage of no leaf": forged(
        lambda: {
            "storages": [[_MIB, [[digest(_ZEROS), 0, 0, _MIB]]]] * 20_000,
            "leaves": [tensor("w", [_MIB])],
        },
        _ZEROS,
    ),
    # ---------------------------------------------------------------------------------------- sizes
    "logical_bytes of 2^53": forged(lambda: {"logical_bytes": 2**53}),
    "new_bytes of 2^53": forged(lambda: {"new_bytes": 2**53, "reused_bytes": 2**53}),
    "sizes that do not add up": forged(lambda: {"storages": [[_W + 1, [[digest(b"x" * _W), 0, 0, _W]]]]}),
    "a blob of 2^50 bytes that has 4096": forged(
        lambda: {
            "blobs": [[digest(b"x" * _W), 2**50]],
            "storages": [[2**50, [[digest(b"x" * _W), 0, 0, 2**50]]]],
            "leaves": [tensor("w", [2**50])],
        }
    ),
    "100000 blobs that are not there": forged(
        lambda: {"blobs": [[digest(b"x" * _W), _W], *([f"xxh3-{i:032x}", 2**40] for i in range(100_000))]}
    ),
    "a storage of 2^50 bytes of blobs that are not there": forged(
        lambda: {
            "blobs": [[f"xxh3-{i:032x}", 2**40] for i in range(1024)],
            "storages": [[2**50, [[f"xxh3-{i:032x}", i, 0, 2**40] for i in range(1024)]]],
            "leaves": [tensor("w", [2**50])],
        }
    ),
    "extents of nothing": forged(lambda: {"storages": [[0, [[digest(b""), 0, 0, 0]] * 1000]]}),
    "sizes as floats": forged(lambda: {"logical_bytes": 4096.0}),
    # ---------------------------------------------------------------------------------------- order and identity
    "sequence 2^53": forged(lambda: {"sequence": 2**53}),
    "sequence 2^53 - 1": forged(lambda: {"sequence": 2**53 - 1}),
    "sequence 2^53 + 1": forged(lambda: {"sequence": 2**53 + 1}),
    "sequence 2^63": forged(lambda: {"sequence": 2**63}),
    "sequence 10^12": forged(lambda: {"sequence": 10**12}),
    "sequence -1": forged(lambda: {"sequence": -1}),
    "sequence 0": forged(lambda: {"sequence": 0}),
    "sequence as a text": forged(lambda: {"sequence": "3"}),
    "sequence 1e308": forged(lambda: {"sequence": 1e308}),
    "step 2^53 in the manifest": forged(lambda: {"step": 2**53}),
    "step 2^53": lambda scene: publish(scene, dumps(members_of(b"x" * _W, step=2**53)), (b"x" * _W,), step=str(2**53)),
    "a run that is a path": forged(lambda: {"run": "../../outside"}),
    "made in the year 9999": forged(lambda: {"created": "9999-12-31T23:59:59.999999Z"}),
    "made in the year 0": forged(lambda: {"created": "0000-01-01T00:00:00.000000Z"}),
    "a parent that is its own": forged(lambda: {"parent": digest(b"parent")}),
    "metrics of nan and infinity": forged(lambda: {"metrics": {"loss": "nan", "bleu": "-inf", "x": 1e308}}),
    "100000 metrics": forged(lambda: {"metrics": {f"m{i}": i for i in range(100_000)}}),
    "a checkpoint hashed with blake3": _other_hash,
    "two algorithms in one manifest": forged(lambda: {"blobs": [[digest(b"x" * _W), _W], ["blake3-" + "0" * 64, _W]]}),
    "store.json says blake3": _changed_document("store.json", hash="blake3"),
    # ---------------------------------------------------------------------------------------- documents
    "containers nested 100 deep": forged(_state(lambda: _nested(100))),
    "containers nested 101 deep": forged(_state(lambda: _nested(101))),
    "JSON nested a million deep": _raw(lambda: b'{"state":' + b"[" * 10**6 + b"]" * 10**6 + b"}"),
    "objects nested a million deep": _raw(lambda: b'{"state":' * 10**6 + b"1" + b"}" * 10**6),
    "a million members": _raw(lambda: b"{" + b",".join(b'"%d":0' % i for i in range(10**6)) + b"}"),
    "two million empty lists": _raw(lambda: b'{"state":[' + b",".join([b"[]"] * 2 * 10**6) + b"]}"),
    "the same member twice": _raw(lambda: dumps(members_of(b"x" * _W))[:-1] + b',"step":4}'),
    "a number of a million digits": _raw(lambda: b'{"sequence":' + b"1" * 10**6 + b"}"),
    "an integer of a million digits": forged(_state(lambda: ["int", "1" * 10**6])),
    "a million integers as keys": forged(_state(lambda: ["dict", [[i, None] for i in range(10**6)]])),
    "the same name a thousand times": forged(
        lambda: {"leaves": [tensor("w", [1])] * 1000, "state": ["list", [["leaf", i] for i in range(1000)]]}
    ),
    "a name of 50 MB": forged(
        lambda: {"leaves": [tensor("w" * 50_000_000, [1])], "state": ["dict", [["w" * 50_000_000, ["leaf", 0]]]]}
    ),
    "a key of 10 MB above 100000 values": forged(
        _state(lambda: ["dict", [["x" * 10**7, ["list", list(range(100_000))]]]])
    ),
    "a thousand names of 100 levels": forged(
        lambda: {
            "leaves": [],
            "state": ["dict", [["x" * 10_000, ["dict", [["y" * 10_000, _nested(90)]]]] for _ in range(1)]],
        }
    ),
    "names that are control characters": forged(
        lambda: {
            "leaves": [tensor("\x1b[2J\n\r\0", [1])],
            "state": ["dict", [["\x1b[2J\n\r\0", ["leaf", 0]]]],
        }
    ),
    "half a surrogate pair": forged(
        lambda: {"leaves": [tensor("\ud800", [1])], "state": ["dict", [["\ud800", ["leaf", 0]]]]}
    ),
    "a message of 30 MB": forged(lambda: {"message": "x" * 30_000_000}),
    "metadata nested 100 deep": forged(lambda: {"metadata": json.loads('{"a":' * 99 + "{}" + "}" * 99)}),
    "a numpy scalar of 20 MB": forged(_state(lambda: ["numpy", "|S15000000", "A" * 20_000_000]), b"x" * 4096),
    "files that lead outside": forged(_of_files([_a_file("../../outside/new")])),
    "files with absolute paths": forged(_of_files([_a_file("/tmp/new")])),
    "a file below a symlink": forged(
        _of_files([{"path": "a", "kind": "symlink", "target": "../../outside"}, _a_file("a/new")])
    ),
    "a symlink that leads outside": forged(
        _of_files([{"path": "a", "kind": "symlink", "target": "../../../outside/thesis.txt"}])
    ),
    "files with setuid": forged(_of_files([_a_file("a", mode=0o6777)])),
    "directories without permissions": forged(
        _of_files([{"path": "a", "kind": "directory", "mode": 0}, _a_file("a/b", mode=0)])
    ),
    "directories nested 2000 deep": forged(
        _of_files(
            [{"path": "/".join(["d"] * i), "kind": "directory", "mode": 493} for i in range(1, 2001)],
        )
    ),
    "files with times that no clock has": forged(_of_files([_a_file("a", mtime="9" * 28)])),
    "files with the latest of times": forged(_of_files([_a_file("a", mtime=str(2**63 * 10**9 - 1))])),
    "files with the earliest of times": forged(_of_files([_a_file("a", mtime=str(-(2**63) * 10**9))])),
    "annotations of a hundred thousand metrics": _annotations(metrics={f"m{i}": i for i in range(100_000)}),
    "annotations of a hundred thousand notes": _annotations(
        notes=[{"created": "2026-11-22T10:00:00.000000Z", "text": "x"}] * 100_000
    ),
    "annotations larger than are read": _annotations(notes=[{"created": "x", "text": "x" * 17 * _MIB}]),
    "annotations of control characters": _annotations(
        notes=[{"created": "2026-11-22T10:00:00.000000Z", "text": "\x1b]0;x\x07\n\0"}]
    ),
    "config.json of a policy that never ends": _changed_document("config.json", retention={"keep_every": 2**53}),
    "config.json that keeps nothing": _changed_document("config.json", retention={"keep_last": 0}),
    "config.json of an unknown rule": _changed_document("config.json", retention={"keep_the_moon": 1}),
    "config.json that makes room": _changed_document("config.json", make_room={"keep_last": 1}),
    "chunks of 2^53 bytes": _changed_document("store.json", chunk_bytes=2**53),
    "chunks of 1 GiB": _changed_document("store.json", chunk_bytes=2**30),
    "a uuid that is a path": _changed_document("store.json", uuid="../../../outside/thesis"),
    "a pin of a path": _changed_document("pins/figure.json", run="../../outside", step=2),
    "a pin of the year 9999": _changed_document("pins/figure.json", expires="9999-12-31T23:59:59.999999Z"),
    "a mark of paths": _changed_document(
        "checkpoints/main/2/damaged.json",
        damage=[{"blob": "../../../outside/thesis.txt", "names": ["w"] * 1000, "what": "x" * 10_000}] * 100,
    ),
}
