"""States to save, made from a seed: flat dicts of tensors, in which no two blocks of 64 KiB are equal.

Drawing gigabytes of random numbers takes longer than saving them. One drawn block is laid out again and again, and
every 64 KiB get a stamp of their own (tensor, place, lap), so that nothing deduplicates that must not. A new lap
changes every stamp of a tensor, and so every chunk of it, whatever the chunk size.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

State = dict[str, torch.Tensor]
Kind = Literal["llm", "rotation", "small", "hundred"]

BLOCK_BYTES = 2**16
_BASE_ELEMENTS = 4 * 2**20
_SMALL_BYTES = tuple(2**power for power in range(10, 17))
_ROTATION_SHARE = 16
_HUNDRED, _HUNDRED_BYTES = 100, 30_000
_BYTES_A_PARAMETER = 2 + 4 + 4


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        state_bytes: Of the LLM-shaped state, to within a few per cent; the exact number is in the results.
        small_count: Tensors of the state of small tensors, of 1 to 64 KiB.
        changing_laps: Saves of a state of which 10 % change.
        rotation_laps: Saves of a smaller state of which all changes, of which three are kept.
        hundred_laps: Saves of a state of 3 MB in 100 tensors of which all changes.
        steady_laps: Saves of the LLM-shaped state, of which all changes, after a first one.
        seed: Of everything that is drawn.
        layers: Of the LLM-shaped state; each has 9 tensors, and two moments of each, so 19 make more than 500.
        large_file: Where a state larger than memory was written; empty: states are in memory.
    """

    state_bytes: int
    small_count: int = 50_000
    changing_laps: int = 20
    rotation_laps: int = 60
    hundred_laps: int = 100
    steady_laps: int = 9
    seed: int = 20_250
    layers: int = 19
    large_file: str = ""


@dataclass(frozen=True)
class Shape:
    """One tensor of a state."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def shapes(kind: Kind, sizes: Sizes) -> list[Shape]:
    """Return what a state of this kind consists of; the weights first, then the moments."""
    if kind == "small":
        cycle = itertools.cycle(_SMALL_BYTES)
        return [Shape(f"small.{i:06}", torch.float32, (next(cycle) // 4,)) for i in range(sizes.small_count)]
    if kind == "hundred":
        return [Shape(f"hundred.{i:02}", torch.float32, (_HUNDRED_BYTES // 4,)) for i in range(_HUNDRED)]
    nbytes = sizes.state_bytes // (_ROTATION_SHARE if kind == "rotation" else 1)
    return list(_llm(nbytes, sizes.layers))


def _llm(nbytes: int, layers: int) -> Iterator[Shape]:
    # A layer has 12 h² parameters and the embedding, of 24 h words, 24 h².
    wide = math.sqrt(nbytes / _BYTES_A_PARAMETER / (12 * layers + 24))
    h = max(16, round(wide / 16) * 16)
    weights: list[tuple[str, tuple[int, ...]]] = [("embed", (24 * h, h))]
    for i in range(layers):
        layer = f"layers.{i}"
        weights += [(f"{layer}.attention.{name}", (h, h)) for name in ("q", "k", "v", "o")]
        weights += [(f"{layer}.mlp.up", (4 * h, h)), (f"{layer}.mlp.down", (h, 4 * h))]
        weights += [(f"{layer}.norm.{name}", (h,)) for name in ("attention", "mlp", "out")]
    yield from (Shape(f"model.{name}", torch.bfloat16, shape) for name, shape in weights)
    for moment in ("exp_avg", "exp_avg_sq"):
        yield from (Shape(f"optimizer.{name}.{moment}", torch.float32, shape) for name, shape in weights)


def nbytes_of(kind: Kind, sizes: Sizes) -> int:
    """Return the bytes of all tensors of such a state."""
    return sum(shape.nbytes for shape in shapes(kind, sizes))


def make(kind: Kind, sizes: Sizes) -> State:
    """Make a state; the LLM-shaped one is mapped where `sizes` names a file for it."""
    if kind == "llm" and sizes.large_file:
        return _mapped(Path(sizes.large_file), shapes(kind, sizes))
    filler = _Filler(sizes)
    state = {}
    for number, shape in enumerate(shapes(kind, sizes)):
        state[shape.name] = tensor = torch.empty(shape.shape, dtype=shape.dtype)
        filler.fill(tensor, number)
        stamp(tensor, number, lap=0)
    return state


def change(state: State, lap: int, names: Iterable[str] | None = None) -> None:
    """Change every block of some tensors, or of all, in place; each lap to something that never was."""
    wanted = set(state if names is None else names)
    for number, (name, tensor) in enumerate(state.items()):
        if name in wanted:
            stamp(tensor, number, lap)


def a_tenth(state: State) -> list[str]:
    """Return names that have about 10 % of the bytes: the last layers, weights and moments, as in a LoRA run."""
    wanted_bytes = sum(tensor.nbytes for tensor in state.values()) / 10
    names: list[str] = []
    done_bytes = 0
    for weight in sorted((name for name in state if ".mlp." in name and name.startswith("model.")), reverse=True):
        stem = weight.removeprefix("model.")
        group = [weight, *(f"optimizer.{stem}.{moment}" for moment in ("exp_avg", "exp_avg_sq"))]
        group_bytes = sum(state[name].nbytes for name in group)
        if done_bytes + group_bytes > wanted_bytes:
            break
        names += group
        done_bytes += group_bytes
    return names


def stamp(tensor: torch.Tensor, number: int, lap: int) -> None:
    """Write a number of its own into every block: small ones, so that no element becomes a NaN."""
    words = tensor.view(-1).view(torch.int32)[:: BLOCK_BYTES // 4]
    words.copy_(torch.arange(len(words), dtype=torch.int32).bitwise_and_(0xFFFF).add_(1))
    if len(tensor.view(-1).view(torch.int32)) >= 4:
        tensor.view(-1).view(torch.int32)[1 :: BLOCK_BYTES // 4] = number
        tensor.view(-1).view(torch.int32)[2 :: BLOCK_BYTES // 4] = lap


def same(found: Mapping[str, torch.Tensor], wanted: State) -> bool:
    """Whether two states have the same names, dtypes, shapes and bits."""
    if sorted(found) != sorted(wanted):
        return False
    for name, tensor in wanted.items():
        other = found[name]
        if (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            return False
        if not torch.equal(as_bytes(other), as_bytes(tensor)):
            return False
    return True


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor as bytes."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def like(state: State) -> State:
    """Return a state of the same shapes in memory of its own, every page of which is there."""
    return {name: torch.ones_like(tensor) for name, tensor in state.items()}


def write_large(path: Path, sizes: Sizes) -> None:
    """Write the LLM-shaped state to a file, one tensor in memory at a time."""
    filler = _Filler(sizes)
    with path.open("wb") as file:
        for number, shape in enumerate(shapes("llm", sizes)):
            tensor = torch.empty(shape.shape, dtype=shape.dtype)
            filler.fill(tensor, number)
            stamp(tensor, number, lap=0)
            file.write(as_bytes(tensor).numpy().data)
        os.fsync(file.fileno())


def _mapped(path: Path, wanted: list[Shape]) -> State:
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)  # shared: of a private one the kernel wants that it all fits into memory
    state, at = {}, 0
    for shape in wanted:
        flat = torch.frombuffer(memory, dtype=shape.dtype, count=math.prod(shape.shape), offset=at)
        state[shape.name] = flat.view(shape.shape)
        at += shape.nbytes
    return state


class _Filler:
    """Lays one block of normal numbers out over tensors of any size."""

    def __init__(self, sizes: Sizes) -> None:
        elements = min(_BASE_ELEMENTS, max(2**16, sizes.state_bytes // 8))
        generator = torch.Generator().manual_seed(sizes.seed)
        wide = torch.randn(elements, generator=generator).mul_(0.02)
        self._base = {torch.float32: wide, torch.bfloat16: wide.to(torch.bfloat16)}

    def fill(self, tensor: torch.Tensor, number: int) -> None:
        flat, base = tensor.view(-1), self._base[tensor.dtype]
        start, at = number * 7919 * 16 % len(base), 0
        while at < len(flat):
            part = base[start : start + len(flat) - at]
            flat[at : at + len(part)] = part
            at, start = at + len(part), 0
