"""``python -m tests.bench encodings``: the encoding of tensors beside zstd, ZipNN and the entropy of their planes.

With ``--levels``, instead each byte plane at every level of zstd, with and without a second thread.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import zstandard

from ckstore.codecs import planes, tiles, zstd
from ckstore.codecs.tiles import TILE_BYTES
from tests.bench import histories, page
from tests.bench.histories import Parts

_BYTES = 4 * TILE_BYTES
_STEPS = (30, 31, 40, 130)
_SCALES = (0.02, 0.0141, 0.05, 0.003)
_ADAPTED_BYTES = 2**17  # of a plane, after which zstd adapts its codes
_FIRST, _LAST = "<!--encodings:begin-->", "<!--encodings:end-->"
_LEVELS = (1, 3, 19)
_TIMED = ("ckstore", "zstd 3", "ZipNN")


class Tensor(NamedTuple):
    """A tensor as bytes, the size of an element, and the tensor of a newer checkpoint that it is encoded with."""

    name: str
    data: bytes
    width: int
    base: bytes | None = None
    dtype: str = ""  # as ZipNN calls it

    def parts(self) -> list[tuple[bytes, bytes | None]]:
        """Return the tiles, each with that of the base."""
        starts = range(0, len(self.data), TILE_BYTES)
        bases = [None if self.base is None else self.base[i : i + TILE_BYTES] for i in starts]
        return [(self.data[i : i + TILE_BYTES], base) for i, base in zip(starts, bases, strict=True)]


class Measurement(NamedTuple):
    """The share of the plain bytes, and seconds of processor time for a gigabyte."""

    share: float
    encode_s: float
    decode_s: float


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench encodings", description=__doc__)
    parser.add_argument("--levels", action="store_true", help="byte planes at every level of zstd instead")
    parser.add_argument("--rounds", type=int, default=5, help="of which the fastest counts")
    parser.add_argument("--page", action="store_true", help="write the table into docs/performance.md")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = list(tensors())
    if given.levels:
        for line in _levels(found):
            print(line, flush=True)
        return 0
    rows = [(tensor, _entropy(tensor), _measured(tensor, given.rounds)) for tensor in found]
    text = "\n".join(["`python -m tests.bench encodings --page`:", "", *_table(rows)])
    print(text)
    if given.page:
        page.put(page.PAGE, _FIRST, _LAST, text)
    return 0


def tensors() -> Iterator[Tensor]:
    """Yield weights drawn at random, then those of a small real training."""
    generator = torch.Generator().manual_seed(0)
    count = _BYTES // 2 // len(_SCALES)
    dense = torch.cat([torch.randn(count, generator=generator) * scale for scale in _SCALES])
    half = dense.to(torch.bfloat16)
    yield Tensor("bfloat16, normal, a scale for each layer", _raw(half), 2, dtype="bfloat16")
    scales = torch.rand(4096, 1, generator=generator) * 0.04 + 0.002
    rows = torch.randn(4096, 512, generator=generator) * scales
    yield Tensor("bfloat16, embeddings, a scale for each row", _raw(rows.to(torch.bfloat16)), 2, dtype="bfloat16")
    yield Tensor("float8_e4m3fn, normal", _raw((dense * 20).to(torch.float8_e4m3fn)), 1)
    bits = half.view(torch.int16).clone()
    bits[torch.rand(len(bits), generator=generator) < 0.01] += 1
    yield Tensor("bfloat16, 1 % changed", _raw(half), 2, _raw(bits), dtype="bfloat16")
    states = dict(_trained())
    first, last = states[_STEPS[0]], states[_STEPS[-1]]
    weights = {name: value.to(torch.bfloat16) for name, value in last["w"].items()}
    yield Tensor("bfloat16, trained", _joined(weights), 2, dtype="bfloat16")
    for kind, name in (("w", "weights"), ("m", "first moment"), ("v", "second moment")):
        yield Tensor(f"float32, {name}", _joined(last[kind]), 4, dtype="float32")
    for step in _STEPS[1:]:
        name = f"float32, weights and moments, {step - _STEPS[0]} steps before a base"
        yield Tensor(name, _all(first), 4, _all(states[step]), dtype="float32")


def _trained() -> Iterator[tuple[int, Parts]]:
    histories.WIDTH, histories.BATCH, histories.LAYERS = 384, 4, 2
    for step, (_, parts) in zip(range(_STEPS[-1] + 1), histories.pretraining(), strict=False):
        if step in _STEPS:
            yield step, parts


def _raw(value: torch.Tensor) -> bytes:
    return bytes(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def _joined(values: dict[str, torch.Tensor], most_bytes: int = _BYTES) -> bytes:
    # The matrices of the layers. The tables before them have rows that were never trained.
    return b"".join(_raw(value) for name, value in values.items() if name.startswith("layers"))[:most_bytes]


def _all(parts: Parts) -> bytes:
    return b"".join(_joined(parts[kind], 2 * TILE_BYTES) for kind in ("w", "m", "v"))


def _entropy(tensor: Tensor) -> float:
    """Return the share that a perfect order-0 coder of the planes would need, with the best form of each tile."""
    total = 0.0
    for data, base in tensor.parts():
        x = np.frombuffer(data, f"<u{tensor.width}")
        forms = [x, *([planes.with_exponent_first(x)] if tensor.width in {2, 4} else [])]
        if base is not None:
            forms.append(tiles._difference(x, np.frombuffer(base, x.dtype)))
        total += min(sum(map(_plane_entropy, _planes(form))) for form in forms)
    return total / len(tensor.data)


def _planes(elements: Any) -> Iterator[Any]:
    for k in range(elements.itemsize):
        yield (elements >> (8 * k)).astype(np.uint8)


def _plane_entropy(plane: Any) -> float:
    total = 0.0
    for start in range(0, len(plane), _ADAPTED_BYTES):
        part = plane[start : start + _ADAPTED_BYTES]
        counts = np.bincount(part, minlength=256)
        counts = counts[counts > 0]
        total += float((counts * np.log2(len(part) / counts)).sum()) / 8
    return total


# -------------------------------------------------------------------------------------------- coders

Encode = Callable[[bytes, bytes | None], Any]
Decode = Callable[[Any, bytes | None, int], Any]


def _coders(tensor: Tensor) -> dict[str, tuple[Encode, Decode, Callable[[Any], int]]]:
    found: dict[str, tuple[Encode, Decode, Callable[[Any], int]]] = {
        "ckstore": (partial(_ckstore, tensor.width), partial(_from_ckstore, tensor.width), lambda one: len(one.data))
    }
    decompressor = zstandard.ZstdDecompressor()
    for level in _LEVELS:
        encode = partial(_alone, zstandard.ZstdCompressor(level=level).compress)
        found[f"zstd {level}"] = (encode, partial(_plain, decompressor.decompress), len)
    if importlib.util.find_spec("zipnn") and tensor.dtype:
        one = importlib.import_module("zipnn").ZipNN(bytearray_dtype=tensor.dtype, input_format="byte")
        # A copy, since it changes its input.
        encode = partial(_alone, lambda data: one.compress(bytearray(data)))
        found["ZipNN"] = (encode, partial(_plain, one.decompress), len)
    return found


def _alone(compress: Callable[[bytes], Any], data: bytes, _: bytes | None) -> Any:
    return compress(data)


def _plain(decompress: Callable[[Any], Any], packed: Any, _: bytes | None, __: int) -> Any:
    return decompress(packed)


def _ckstore(width: int, data: bytes, base: bytes | None) -> tiles.StoredTile:
    return tiles.encode(data, base, width)


def _from_ckstore(width: int, stored: tiles.StoredTile, base: bytes | None, nbytes: int) -> bytearray:
    out = bytearray(nbytes) if base is None else bytearray(base)
    tiles.decode(stored, width, memoryview(out))
    return out


def _measured(tensor: Tensor, rounds: int) -> dict[str, Measurement]:
    """Return the measurement of each coder. They take turns, since other processes use the machine."""
    coders, parts = _coders(tensor), tensor.parts()
    encode_s: dict[str, list[float]] = {name: [] for name in coders}
    decode_s: dict[str, list[float]] = {name: [] for name in coders}
    packed: dict[str, list[Any]] = {}
    for number in range(rounds):
        for name, (encode, decode, _) in coders.items():
            if number == 0 or name in _TIMED:
                begun_s = time.process_time()
                packed[name] = [encode(data, base) for data, base in parts]
                encode_s[name].append(time.process_time() - begun_s)
            begun_s = time.process_time()
            pairs = zip(packed[name], parts, strict=True)
            plain = [decode(one, base, len(data)) for one, (data, base) in pairs]
            decode_s[name].append(time.process_time() - begun_s)
            assert b"".join(map(bytes, plain)) == tensor.data, name
    gigabytes = len(tensor.data) / 1e9
    return {
        name: Measurement(
            sum(map(size, packed[name])) / len(tensor.data),
            min(encode_s[name]) / gigabytes,
            min(decode_s[name]) / gigabytes,
        )
        for name, (_, _, size) in coders.items()
    }


def _table(rows: list[tuple[Tensor, float, dict[str, Measurement]]]) -> Iterator[str]:
    names = ["ckstore", *(f"zstd {level}" for level in _LEVELS), "ZipNN"]
    yield f"| Tensor | entropy | {' | '.join(names)} | {' | '.join(f'{name}, s/GB' for name in _TIMED)} |"
    yield f"|---|{'---|' * (1 + len(names) + len(_TIMED))}"
    for tensor, entropy, found in rows:
        shares = [f"{found[name].share:.3f}" if name in found else "" for name in names]
        times = [f"{found[name].encode_s:.2f}, {found[name].decode_s:.2f}" if name in found else "" for name in _TIMED]
        yield f"| {tensor.name} | {entropy:.3f} | {' | '.join(shares)} | {' | '.join(times)} |"
    if not importlib.util.find_spec("zipnn"):
        yield ""
        yield "Not installed: zipnn."


# -------------------------------------------------------------------------------------------- levels


def _levels(found: list[Tensor]) -> Iterator[str]:
    """Yield a line for each byte plane and each way to compress it."""
    for tensor in found:
        if tensor.base is not None:
            continue
        elements = np.frombuffer(tensor.data, f"<u{tensor.width}")
        forms = {"planes": elements}
        if tensor.width in {2, 4}:
            forms["floats"] = planes.with_exponent_first(elements)
        for form, numbers in forms.items():
            for k, plane in enumerate(_planes(numbers)):
                entropy = _plane_entropy(plane) / len(plane)
                if entropy < 0.98:  # otherwise no level makes it smaller
                    yield f"{tensor.name}, {form}, byte {k}: entropy {entropy:.4f}"
                    yield from _ways(plane.tobytes(), TILE_BYTES // tensor.width)
    yield from _long_range()


def _ways(plane: bytes, nbytes: int) -> Iterator[str]:
    parts = [plane[i : i + nbytes] for i in range(0, len(plane), nbytes)]
    ways: dict[str, Callable[[bytes], bytes]] = {"as ckstore": zstd.compress}
    for level in range(1, 20):
        for threads in (0, 1):
            ways[f"level {level}, threads={threads}"] = zstandard.ZstdCompressor(level=level, threads=threads).compress
    for name, compress in ways.items():
        begun_s = time.process_time()
        packed = [compress(part) for part in parts]
        encode_s = time.process_time() - begun_s
        begun_s = time.process_time()
        for one, part in zip(packed, parts, strict=True):
            zstd.decompress(one, len(part))
        decode_s = time.process_time() - begun_s
        gigabytes = len(plane) / 1e9
        yield (
            f"  {name:<22} {sum(map(len, packed)) / len(plane):.4f}"
            f"  {encode_s / gigabytes:8.2f} s/GB to encode {decode_s / gigabytes:6.2f} to decode"
        )


def _long_range() -> Iterator[str]:
    """Yield the additional bytes of a copy with 1 % changed in one frame with the original."""
    generator = torch.Generator().manual_seed(1)
    half = (torch.randn(4 * _BYTES // 2, generator=generator) * 0.02).to(torch.bfloat16)
    bits = half.view(torch.int16).clone()
    bits[torch.rand(len(bits), generator=generator) < 0.01] += 1
    old, new = _raw(half), _raw(bits)
    for threads in (0, 1):
        for level in (1, 3, 15):
            parameters = zstandard.ZstdCompressionParameters.from_level(
                level, enable_ldm=True, window_log=27, threads=threads
            )
            compressor = zstandard.ZstdCompressor(compression_params=parameters)
            share = (len(compressor.compress(old + new)) - len(compressor.compress(old))) / len(new)
            yield f"long range, level {level}, threads={threads}: a copy with 1 % changed adds {share:.4f}"
