"""Stores with a compacted checkpoint whose encoding or containers are forged, with digests that are right."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import zstandard

from tests.hostile.archives_manifests import digest, dumps, framed, members_of, tensor
from tests.hostile.scene import Builder, Scene
from tests.support.checkpoint_dirs import checkpoint_dir

_MIB = 2**20
_RAW, _PLANES, _DIFFERENCE, _GAPS, _SAME, _FLOATS = range(6)
Tile = tuple[int, bytes]


class Forged(NamedTuple):
    """A compacted checkpoint.

    Attributes:
        files: What is in ``blobs/``.
        encoded: The member of the encoding; the first blob there is the one of the manifest.
        more: Further members of the encoding.
    """

    files: list[bytes]
    encoded: list[list[Any]]
    more: dict[str, Any] = {}  # noqa: RUF012 # never changed


def plain(number: int) -> str:
    """Return the digest of a blob of which nothing is there but an encoded form."""
    return f"xxh3-{number:032x}"


def container(
    blob: str, nbytes: int, tiles: Iterable[Tile], runs: list[list[Any]], bases: Iterable[str] = (), /, **header: Any
) -> bytes:
    """Return the file of an encoded blob; `header`: members that are not as they should be."""
    head = dumps({"plain": blob, "bytes": nbytes, "bases": list(bases), "runs": runs} | header)
    tiles = list(tiles)
    table = b"".join((codec << 24 | len(data)).to_bytes(4, "little") for codec, data in tiles)
    return b"".join([b"ckenc-1\n", len(head).to_bytes(4, "little"), head, table, *(data for _, data in tiles)])


def compacted(make: Callable[[], Forged]) -> Builder:
    """A further checkpoint, main@3, that was compacted."""

    def build(scene: Scene) -> None:
        forged = make()
        publish(scene, forged)

    return build


def publish(scene: Scene, forged: Forged) -> None:
    """Lay it into the store, with its files."""
    name, nbytes = forged.encoded[0][:2]
    blobs = {
        "blobs": [[name, nbytes]],
        "storages": [[nbytes, [[name, 0, 0, nbytes]]]],
        "leaves": [tensor("w", [nbytes])],
    }
    manifest = framed(dumps(members_of(b"x", **blobs)))
    encoding = {
        "checkpoint": json.loads(manifest)["digest"],
        "encoded": forged.encoded,
        "files": [[digest(data), len(data)] for data in forged.files],
        "format": "ckstore-manifest",
        "place": 0,
        "requires": ["encoded-1"],
        "version": 1,
        **forged.more,
    }
    folder = checkpoint_dir(scene.store, "main", 3)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "blobs").mkdir(parents=True)
    (folder / "plain.json").write_bytes(manifest)
    (folder / "manifest.json").write_bytes(framed(dumps(encoding)))
    for data in forged.files:
        path = folder / "blobs" / digest(data)
        path.write_bytes(data)
        os.chmod(path, 0o444)
        os.utime(path, (10**9, 10**9))


def _alone(tile: Tile, **header: Any) -> Callable[[], Forged]:
    """One blob of one tile of 4096 bytes, without a base."""
    return lambda: Forged(
        [container(plain(1), 4096, [tile], [[4096, 1]], **header)], [[plain(1), header.get("bytes", 4096), 0, []]]
    )


def _on_base(tile: Tile, run: list[Any], base: bytes = bytes(range(256)) * 16) -> Callable[[], Forged]:
    """One blob of one tile, on a base that is there."""
    bases = [digest(base)]
    return lambda: Forged([base, container(plain(1), run[0], [tile], [run], bases)], [[plain(1), run[0], 1, bases]])


def _with(make: Callable[[], Forged], **more: Any) -> Builder:
    """The same with other members in the encoding."""
    return compacted(lambda: make()._replace(more=more))


def _planes(*planes: bytes) -> bytes:
    return b"".join([*(len(data).to_bytes(4, "little") for data in planes), *planes])


def _frame(claimed: int) -> bytes:
    """A frame that claims a size: magic number, a single segment with 8 bytes of it, an empty last block."""
    return bytes.fromhex("28b52ffd") + b"\xe0" + claimed.to_bytes(8, "little") + b"\x01\x00\x00"


def _window(log: int) -> bytes:
    """A frame of a window of 2^`log` bytes that ends within its first block."""
    return bytes.fromhex("28b52ffd") + b"\x80" + bytes([(log - 10) << 3]) + (4096).to_bytes(4, "little") + b"\x01"


def _gaps(changed: int, steps: int, packed: bytes, claimed: int | None = None) -> bytes:
    sizes = changed, steps, len(packed) if claimed is None else claimed
    return b"".join([*(n.to_bytes(4, "little") for n in sizes), packed])


def _cut(at: int) -> Callable[[], Forged]:
    """A file of two raw tiles that ends early; its digest is right."""
    nbytes = _MIB + 4096
    whole = container(plain(1), nbytes, [(_RAW, b"r" * _MIB), (_RAW, b"s" * 4096)], [[nbytes, 1]])
    return lambda: Forged([whole[:at]], [[plain(1), nbytes, 0, []]])


def _loop(count: int, length: int | None = None) -> Callable[[], Forged]:
    """Blobs of which each is decoded with the next; the last with the first, or with nothing."""

    def make() -> Forged:
        files, encoded = [], []
        for i in range(count):
            bases = [plain(1 + (i + 1) % count)] if length is None or i + 1 < count else []
            run: list[Any] = [4096, 1, "same", 0, 0] if bases else [4096, 1]
            tile = (_SAME, b"") if bases else (_PLANES, _planes(b""))
            files.append(container(plain(1 + i), 4096, [tile], [run], bases))
            encoded.append([plain(1 + i), 4096, i, bases])
        return Forged(files, encoded)

    return make


def _to_and_fro() -> Forged:
    """A chain of seven whose tiles are cut at other places, and runs that jump to and fro in its first: 2^20 tiles."""
    levels, runs = 7, 16_000
    sizes = [4 * runs, *(_MIB * (6 + i) for i in range(levels))]
    jumps = [[4, 4, "same", 0, _MIB * 5 * (i % 2) + 4 * i] for i in range(runs)]
    files = [container(plain(1), sizes[0], [(_SAME, b"")] * runs, jumps, [plain(2)])]
    encoded: list[list[Any]] = [[plain(1), sizes[0], 0, [plain(2)]]]
    for i in range(1, levels):
        size, bases = sizes[i], [plain(i + 2)] if i + 1 < levels else []
        run: list[Any] = [size, 4, "same", 0, _MIB // 2] if bases else [size, 4]
        tile = (_SAME, b"") if bases else (_PLANES, _planes(b"", b"", b"", b""))
        files.append(container(plain(i + 1), size, [tile] * -(-size // _MIB), [run], bases))
        encoded.append([plain(i + 1), size, i, bases])
    return Forged(files, encoded)


def _heads() -> Forged:
    """Runs that go round eighteen bases whose heads are long: more than a reader keeps open."""
    bases, tiny, runs = 18, 6_000, 3_000
    names = [plain(2 + i) for i in range(bases)]
    jumps = [[1, 1, "same", i % bases, i % tiny] for i in range(runs)]
    files = [container(plain(1), runs, [(_SAME, b"")] * runs, jumps, names)]
    encoded: list[list[Any]] = [[plain(1), runs, 0, names]]
    for i, name in enumerate(names):
        files.append(container(name, tiny, [(_RAW, bytes([i]))] * tiny, [[1, 1]] * tiny))
        encoded.append([name, tiny, i + 1, []])
    return Forged(files, encoded)


_NUMBERS = bytes(range(256)) * 16
_SPARSE = zstandard.ZstdCompressor().compress(bytes(_MIB * 16))

CASES: dict[str, Builder] = {
    # ------------------------------------------------------------------------------------------ frames
    "a frame that claims 2^62 bytes": compacted(_alone((_PLANES, _planes(_frame(2**62))))),
    "a frame that claims one byte more": compacted(_alone((_PLANES, _planes(_frame(4097))))),
    "a frame that claims no byte": compacted(_alone((_PLANES, _planes(_frame(0))))),
    "a frame of the right size with nothing in it": compacted(_alone((_PLANES, _planes(_frame(4096))))),
    "a frame of 16 MiB for a plane of 4096 bytes": compacted(_alone((_PLANES, _planes(_SPARSE)))),
    "a frame of 16 MiB for steps": compacted(_on_base((_GAPS, _gaps(1, 4096, _SPARSE)), [4096, 1, "same", 0, 0])),
    "a frame that is cut": compacted(_alone((_PLANES, _planes(zstandard.ZstdCompressor().compress(_NUMBERS)[:-7])))),
    "a frame with a window of 2 GiB that is cut": compacted(_alone((_PLANES, _planes(_window(31))))),
    "a frame with a window of 64 MiB that is cut": compacted(_alone((_PLANES, _planes(_window(26))))),
    "two frames for one plane": compacted(
        _alone((_PLANES, _planes(zstandard.ZstdCompressor().compress(bytes(2048)) * 2)))
    ),
    "a frame that may be skipped": compacted(_alone((_PLANES, _planes(b"\x50\x2a\x4d\x18\x04\0\0\0skip")))),
    "half a GiB of zeros in 20 KB": compacted(
        lambda: Forged(
            [container(plain(1), 2**29, [(_PLANES, _planes(b""))] * 512, [[2**29, 1]])], [[plain(1), 2**29, 0, []]]
        )
    ),
    # ------------------------------------------------------------------------------------------ tiles
    "planes that are longer than their tile says": compacted(_alone((_PLANES, _planes(b"x" * 100)[:50]))),
    "planes of another size": compacted(_alone((_PLANES, _planes(b"x" * 99)))),
    "a raw tile that is short": compacted(_alone((_RAW, b"x" * 4095))),
    "a tile that is longer than its plain bytes": compacted(_alone((_RAW, b"x" * 4097))),
    "a codec that does not exist": compacted(_alone((77, _NUMBERS))),
    "floats of one byte": compacted(_alone((_FLOATS, _planes(_NUMBERS)))),
    "floats whose exponents are cut": compacted(
        _alone((_FLOATS, _planes(_NUMBERS[:2048], _frame(2047))), runs=[[4096, 2]])
    ),
    "a tile that is its base, and has none": compacted(_alone((_SAME, b""))),
    "2^31 gaps": compacted(_on_base((_GAPS, _gaps(2**31, 2**31, b"")), [4096, 1, "same", 0, 0])),
    "no gap": compacted(_on_base((_GAPS, _gaps(0, 0, b"")), [4096, 1, "same", 0, 0])),
    "gaps that end beyond the tile": compacted(
        _on_base((_GAPS, _gaps(1, 20, b"\xff" * 19 + b"\x01") + _planes(b"x")), [4096, 1, "same", 0, 0])
    ),
    "gaps of which fewer are there": compacted(
        _on_base((_GAPS, _gaps(9, 9, b"\xff" * 9) + _planes(b"x" * 9)), [4096, 1, "same", 0, 0])
    ),
    "gaps whose steps are not there": compacted(_on_base((_GAPS, _gaps(1, 9, b"", 2**31)), [4096, 1, "same", 0, 0])),
    # ------------------------------------------------------------------------------------------ head and table
    "a table of 2^60 tiles": compacted(_alone((_RAW, b"x"), bytes=2**60, runs=[[2**60, 1]])),
    "a table of 2048 tiles that is not there": compacted(
        lambda: Forged([container(plain(1), 2**31, [], [[2**31, 1]])], [[plain(1), 2**31, 0, []]])
    ),
    "a header of 4 GiB": compacted(
        lambda: Forged([b"ckenc-1\n\xff\xff\xff\xff" + b"{" * 4096], [[plain(1), 4096, 0, []]])
    ),
    "a header of a MiB that is not there": compacted(
        lambda: Forged([b"ckenc-1\n" + _MIB.to_bytes(4, "little")], [[plain(1), 4096, 0, []]])
    ),
    "a header of a thousand levels": compacted(
        lambda: Forged([b"ckenc-1\n" + (2000).to_bytes(4, "little") + b"[" * 2000], [[plain(1), 4096, 0, []]])
    ),
    "a header of another blob": compacted(_alone((_RAW, _NUMBERS), plain=plain(2))),
    "a header of another size": compacted(_alone((_RAW, _NUMBERS), bytes=4095)),
    "a header of runs that do not add up": compacted(_alone((_RAW, _NUMBERS), runs=[[2**31, 1], [2**31, 1]])),
    "a header of 100000 runs of nothing": compacted(_alone((_RAW, _NUMBERS), runs=[[0, 1]] * 100_000)),
    "a header with numbers of 4000 digits": compacted(_alone((_RAW, _NUMBERS), bytes=10**4000)),
    "an encoded blob that is no container": compacted(lambda: Forged([b"y" * 4096], [[plain(1), 4096, 0, []]])),
    "an encoded blob that ends in its head": compacted(_cut(20)),
    "an encoded blob that ends in its table": compacted(_cut(130)),
    "an encoded blob that ends in a tile": compacted(_cut(_MIB)),
    # ------------------------------------------------------------------------------------------ bases
    "a base that is shorter than what is decoded with it": compacted(
        _on_base((_SAME, b""), [4096, 1, "same", 0, 0], b"short")
    ),
    "bytes of a base from beyond its end": compacted(_on_base((_SAME, b""), [4096, 1, "same", 0, 1])),
    "bytes of a base from 2^62 on": compacted(_on_base((_SAME, b""), [4096, 1, "same", 0, 2**62])),
    "a cast of too few bytes": compacted(_on_base((_SAME, b""), [4096, 2, "bf16", 0, 0])),
    "a base whose file has another size": _with(
        _on_base((_SAME, b""), [4096, 1, "same", 0, 0]), files=[[digest(_NUMBERS), 2**31], [plain(9), 9]]
    ),
    "a blob that is decoded with itself": compacted(_loop(1)),
    "two blobs that are decoded with each other": compacted(_loop(2)),
    "a loop of two thousand blobs": compacted(_loop(2000)),
    "a chain of nine": compacted(_loop(9, 9)),
    "runs that jump to and fro in a chain": compacted(_to_and_fro),
    "runs that go round bases with long heads": compacted(_heads),
    "200000 bases of one blob": compacted(
        lambda: Forged(
            [_NUMBERS, container(plain(1), 4096, [(_RAW, _NUMBERS)], [[4096, 1]])],
            [[plain(1), 4096, 1, [digest(_NUMBERS)] * 200_000]],
        )
    ),
    # ------------------------------------------------------------------------------------------ the encoding
    "a compacted checkpoint of another manifest": _with(_alone((_RAW, _NUMBERS)), checkpoint=plain(7)),
    "a file of 2^60 bytes in an encoding": _with(_alone((_RAW, _NUMBERS)), files=[[plain(5), 2**60]]),
    "a file that is a path in an encoding": _with(_alone((_RAW, _NUMBERS)), files=[["../../../outside/thesis.txt", 9]]),
    "an encoding that requires more": _with(_alone((_RAW, _NUMBERS)), requires=["encoded-1", "encoded-2"]),
}
