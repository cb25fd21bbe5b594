"""Write ``docs/format/vectors.json``: inputs and results with which an implementer tests a reader or a writer.

``python -m tests.format.vectors`` writes the file. The containers remain as they are in the file, because another
release of zstd may compress a plane differently.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from ckstore.codecs import planes
from ckstore.codecs.casts import Prediction, predicted
from ckstore.codecs.container import Header, Run, encode_blob
from ckstore.codecs.container import render as render_container
from ckstore.codecs.tiles import Codec, StoredTile
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import ALGORITHMS
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
from ckstore.model.manifest.nodes import decode_key, join
from ckstore.model.seal import seal

FILE = Path(__file__).parents[2] / "docs" / "format" / "vectors.json"
_XXH3, _BLAKE3 = ALGORITHMS["xxh3_128"], ALGORITHMS["blake3"]

_CANONICAL = (
    '{"b": 1, "a": [true, null, -0, 9, 9.0]}',
    r'{"\ud83d\ude00": 1, "\uff61": 2}',
    r'{"é": "\u007f\t\"\\/\u0001", "z": "\ud83d\ude00", "\ud800": "\u00e9"}',
    "[0.1, 1e-7, 0.0001, 0.00001, 123456789012345.0, 1e15, 1e16, 15e15, -0.0, 5e-324, 1.7976931348623157e308]",
)
_KEYS: tuple[list[Any], ...] = (
    ["a", "b"],
    ["a.b"],
    ["model", ["tuple", [1, "x", None, ["float", 0.5]]], "w"],
    ["opt", "state", 0, "exp_avg"],
    [0, "w"],
    ["a[0]\\", ""],
    [""],
    [True, ["float", "7ff0000000000000"], ["float", 1e16], ["int", "9007199254740993"]],
    [["tuple", []], ["tuple", [["tuple", ['quote " and \\']]]]],
)
_FLOATS = ("00000000", "3f800000", "3f808000", "3f818000", "7f7fffff", "7f800001", "ff800000", "477ff000", "33000001")


def _digests() -> list[dict[str, str]]:
    return [{"bytes": data.hex(), "xxh3": _XXH3.digest(data), "blake3": _BLAKE3.digest(data)} for data in _inputs()]


def _inputs() -> tuple[bytes, ...]:
    return b"", b"abc", bytes(range(256)) * 2


def _manifest() -> dict[str, Any]:
    data = struct.pack("<4f", 1, 2, 3, 4)
    piece = _XXH3.digest(data)
    leaves = (
        LeafRecord("model.w", "torch", "float32", (2, 2), 0),
        LeafRecord("model.turned", "torch", "float32", (2, 2), 0, 0, (1, 2)),
    )
    pairs = [["w", ["leaf", 0]], ["turned", ["leaf", 1]]]
    state = ["dict", [["model", ["dict", pairs]], ["lr", ["float", 1e-05]]]]
    storages = (StorageRecord(len(data), (Extent(piece, 0, 0, len(data)),)),)
    texts = StateTexts.of(leaves, state)
    manifest = Manifest(
        run="main",
        step=1,
        sequence=1,
        created="2026-11-21T09:30:00.000000Z",
        writer="example",
        description=Description(),
        logical_bytes=len(data),
        new_bytes=len(data),
        reused_bytes=0,
        content=content_digest(texts, storages, _XXH3),
        blobs=(BlobRecord(piece, len(data)),),
        storages=storages,
        leaves=leaves,
        state=state,
    )
    manifest_id, text = render(manifest, _XXH3, texts)
    return {
        "blobs": {piece: data.hex()},
        "manifest.json": text.decode("ascii"),
        "id": manifest_id,
        "directory": f"checkpoints/main/1.{manifest_id[5:15]}",
        "leaves": {"model.w": data.hex(), "model.turned": struct.pack("<4f", 1, 3, 2, 4).hex()},
    }


def _small_file() -> dict[str, str]:
    document = {"format": "ckstore-annotations", "metrics": {"bleu": 27.0}, "notes": [], "version": 1}
    return {
        "file": seal(canonical_json(document) + b"\n").decode("ascii"),
        "digest_of": canonical_json(document).decode(),
    }


def _predictions() -> list[dict[str, str]]:
    base = b"".join(bytes.fromhex(bits)[::-1] for bits in _FLOATS)
    kinds: tuple[Prediction, ...] = ("bf16", "fp16")
    return [{"prediction": kind, "base": base.hex(), "predicted": bytes(predicted(kind, base)).hex()} for kind in kinds]


def _containers() -> list[dict[str, Any]]:
    return [
        _container("raw", bytes(range(7, 250, 5)), b"", 1, "same"),
        _container("planes", struct.pack("<64I", *range(0, 640, 10)), b"", 4, "same"),
        _floats(),
        _container("difference", _words(lambda i: 3 * i + i % 7), _words(lambda i: 3 * i), 2, "same"),
        _container("gaps", _words(lambda i: i + (i % 97 == 5)), _words(lambda i: i), 2, "same"),
        _container("same", _words(lambda i: i), _words(lambda i: i) + b"more", 2, "same"),
        _container("same by bf16", _bf16(_singles()), _singles(), 2, "bf16"),
        _container("gaps by fp16", _fp16_but_one(_singles()), _singles(), 2, "fp16"),
    ]


def _floats() -> dict[str, Any]:
    """Return a container of codec 5, which `encode_blob` chooses only for larger tiles."""
    plain = struct.pack("<60f", *((-1) ** (i * i % 11) * 1.1**i for i in range(60)))
    stored = planes.pack(planes.with_exponent_first(np.frombuffer(plain, np.uint32)))
    header = Header(_XXH3.digest(plain), len(plain), (), (Run(len(plain), 4),))
    return _entry("floats", header, render_container(header, [StoredTile(Codec.FLOATS, stored)]), b"", plain)


def _words(value: Any) -> bytes:
    return struct.pack("<600H", *(value(i) for i in range(600)))


def _singles() -> bytes:
    return struct.pack("<600f", *(i / 7 - 40 for i in range(600)))


def _bf16(singles: bytes) -> bytes:
    return bytes(predicted("bf16", singles))


def _fp16_but_one(singles: bytes) -> bytes:
    half = bytearray(predicted("fp16", singles))
    half[700] ^= 1
    return bytes(half)


def _container(what: str, plain: bytes, base: bytes, width: int, prediction: Prediction) -> dict[str, Any]:
    bases = (_XXH3.digest(base),) if base else ()
    run = Run(len(plain), width, prediction, 0, 0) if base else Run(len(plain), width)
    header = Header(_XXH3.digest(plain), len(plain), bases, (run,))
    file = encode_blob(plain, header, lambda _, at, nbytes: memoryview(base)[at : at + nbytes])
    return _entry(what, header, file, base, plain)


def _entry(what: str, header: Header, file: bytes, base: bytes, plain: bytes) -> dict[str, Any]:
    return {
        "what": what,
        "bases": dict.fromkeys(header.bases, base.hex()),
        "file": file.hex(),
        "plain": header.plain,
        "bytes": plain.hex(),
    }


def made(containers: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the content of the file, with these containers or with new ones."""
    return {
        "canonical": [{"json": text, "canonical": canonical_json(json.loads(text)).decode()} for text in _CANONICAL],
        "digests": _digests(),
        "names": [{"keys": keys, "name": _name(keys)} for keys in _KEYS],
        "small_file": _small_file(),
        "checkpoint": _manifest(),
        "predictions": _predictions(),
        "containers": _containers() if containers is None else containers,
    }


def _name(keys: list[Any]) -> str:
    name = ""
    for key in keys:
        name = join(name, decode_key(key))
    return name


if __name__ == "__main__":
    FILE.write_text(json.dumps(made(), indent=1) + "\n", encoding="ascii")
