"""Compute the fingerprints that the module `fingerprint` defines, with one Triton kernel for all regions.

This module can only be imported if Triton is installed.
"""

# Triton reads the source code of the functions that it compiles, and supports only its own annotations. By convention,
# the names of its constants are in capitals.
# ruff: noqa: ANN001, ANN202, N803, PLR0917, SIM102
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import triton
import triton.language as tl

from ckstore.tensors.device import MIXES

_SEED_A, _STEP_A, _FIRST_A, _SECOND_A = (tl.constexpr(number) for number in MIXES[0])
_SEED_B, _STEP_B, _FIRST_B, _SECOND_B = (tl.constexpr(number) for number in MIXES[1])
_SPLITS = 32
"""The number of programs for each region.

Each program reads 1 MiB of a chunk of 32 MiB. A few hundred regions are enough to occupy any GPU.
"""
_BLOCK = 1024


@triton.jit
def _mixed(word, place, seed: tl.constexpr, step: tl.constexpr, first: tl.constexpr, second: tl.constexpr):
    mixed = (word ^ (place * step + seed)) * first
    mixed = (mixed ^ (mixed >> 32)) * second
    return mixed ^ (mixed >> 29)


@triton.jit
def _sums(table, out, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    region = tl.program_id(0)
    split = tl.program_id(1)
    address = tl.load(table + region * 2)
    nbytes = tl.load(table + region * 2 + 1)
    words = nbytes // 8
    base = address.to(tl.pointer_type(tl.uint64))
    sum_a = tl.zeros([BLOCK], dtype=tl.uint64)
    sum_b = tl.zeros([BLOCK], dtype=tl.uint64)
    none = tl.zeros([BLOCK], dtype=tl.uint64)
    for at in range(split * BLOCK, words, SPLITS * BLOCK):
        place = at + tl.arange(0, BLOCK).to(tl.int64)
        inside = place < words
        word = tl.load(base + place, mask=inside, other=0)
        number = place.to(tl.uint64)
        sum_a += tl.where(inside, _mixed(word, number, _SEED_A, _STEP_A, _FIRST_A, _SECOND_A), none)
        sum_b += tl.where(inside, _mixed(word, number, _SEED_B, _STEP_B, _FIRST_B, _SECOND_B), none)
    total_a = tl.sum(sum_a, axis=0)
    total_b = tl.sum(sum_b, axis=0)
    # If the last bytes do not fill a word, the word is padded with zeros.
    left = nbytes - words * 8
    if split == 0:
        if left > 0:
            at8 = tl.arange(0, 8).to(tl.int64)
            bytes_at = address.to(tl.pointer_type(tl.uint8)) + words * 8 + at8
            parts = tl.load(bytes_at, mask=at8 < left, other=0).to(tl.uint64) << (at8 * 8).to(tl.uint64)
            last = tl.sum(parts, axis=0)
            end = words.to(tl.uint64)
            total_a += _mixed(last, end, _SEED_A, _STEP_A, _FIRST_A, _SECOND_A)
            total_b += _mixed(last, end, _SEED_B, _STEP_B, _FIRST_B, _SECOND_B)
    row = out + (region * SPLITS + split) * 2
    tl.store(row, total_a.to(tl.int64, bitcast=True))
    tl.store(row + 1, total_b.to(tl.int64, bitcast=True))


def compile_it() -> None:
    """Compile the kernel for the current device, without running it."""
    _sums.warmup(torch.int64, torch.int64, SPLITS=_SPLITS, BLOCK=_BLOCK, grid=(1, 1))


def sums(places: Sequence[tuple[int, int]], device: torch.device) -> torch.Tensor:
    """Return two sums for each region.

    `places` has the address and the size of each region. Each region begins at a word boundary.
    """
    table = torch.tensor(places, dtype=torch.int64).to(device)
    parts = torch.empty((len(places), _SPLITS, 2), dtype=torch.int64, device=device)
    # Triton starts kernels on the current device, so select the device of the regions.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        _sums[len(places), _SPLITS](table, parts, SPLITS=_SPLITS, BLOCK=_BLOCK)
    return parts.sum(1)
