"""A fingerprint sees each element that changes, whatever its bits mean, and is the same however it is taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore.tensors.device import MIXES, fingerprint
from ckstore.tensors.state_capture import capture
from tests.support.requirements import require_cuda
from tests.support.states import TORCH_DTYPES

WORD = 2**64


def by_hand(data: bytes) -> list[int]:
    """The definition, word for word."""
    padded = data + bytes(-len(data) % 8)
    found = []
    for seed, step, first, second in MIXES:
        total = 0
        for place in range(len(padded) // 8):
            mixed = int.from_bytes(padded[8 * place : 8 * place + 8], "little")
            mixed = (mixed ^ (place * step + seed) % WORD) * first % WORD
            mixed = (mixed ^ mixed >> 32) * second % WORD
            total += mixed ^ mixed >> 29
        found.append(total % WORD)
    return found


def sums_of(*regions: torch.Tensor) -> list[list[int]]:
    return [[int(number) % WORD for number in row] for row in fingerprint.by_torch(regions)]


def drawn(nbytes: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=5), st.integers(0, 9))
@settings(max_examples=60)
def test_it_is_what_its_definition_says(parts: list[bytes], offset: int) -> None:
    # One memory with all of them, so that some lie at odd addresses.
    whole = bytearray(bytes(offset) + b"".join(parts))
    flat = torch.frombuffer(whole, dtype=torch.uint8)
    regions, at = [], offset
    for part in parts:
        regions.append(flat[at : at + len(part)])
        at += len(part)

    assert sums_of(*regions) == [by_hand(part) for part in parts]


def test_large_regions_are_the_same_as_their_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_LARGE_BYTES", 200)
    monkeypatch.setattr(fingerprint, "_SLICE_BYTES", 64)
    regions = [drawn(nbytes, nbytes) for nbytes in (1, 199, 200, 201, 640, 1003, 8)]

    assert sums_of(*regions) == [by_hand(bytes(region.tolist())) for region in regions]


@given(st.sampled_from(TORCH_DTYPES), st.integers(1, 300), st.integers(0, 12), st.data())
@settings(max_examples=200)
def test_an_element_that_changes_changes_it(dtype: torch.dtype, count: int, offset: int, data: st.DataObject) -> None:
    """Both sums, for elements of up to 8 bytes: other NaNs and the sign of a zero are other bits."""
    bits = drawn((count + offset) * dtype.itemsize, 5)
    region = bits[offset * dtype.itemsize :]
    before = sums_of(region)[0]
    index = data.draw(st.integers(0, count - 1))
    element = region[index * dtype.itemsize : (index + 1) * dtype.itemsize]
    old = bytes(element.tolist())
    new = data.draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize).filter(lambda found: found != old))
    element.copy_(torch.tensor(list(new), dtype=torch.uint8))

    after = sums_of(region)[0]

    if dtype.itemsize <= 8 and (offset * dtype.itemsize) % dtype.itemsize == 0:
        assert before[0] != after[0]
        assert before[1] != after[1]
    else:
        assert before != after


def test_another_zero_another_nan_and_another_order_are_seen() -> None:
    zeros = torch.zeros(100)
    nans = torch.full((100,), float("nan"))
    minus, other = zeros.clone(), nans.clone()
    minus[7] = -0.0
    other.view(torch.int32)[7] += 1
    turned = torch.arange(100).flip(0)

    pairs = [(zeros, minus), (nans, other), (torch.arange(100), turned)]

    for first, second in pairs:
        a, b = sums_of(first.view(torch.uint8), second.view(torch.uint8))
        assert a != b


@pytest.mark.gpu
@pytest.mark.parametrize("shift", [0, 1, 4, 8])
def test_the_kernel_and_torch_find_the_same(shift: int) -> None:
    require_cuda()
    kernel, why_not = fingerprint.compiled(timeout_s=50)
    assert kernel is not None, why_not
    sizes = (1, 7, 8, 9, 640, 8191, 8192, 8193, 262_144, 1_000_003, 33_550_000)
    regions = [drawn(nbytes + shift, nbytes).cuda()[shift:] for nbytes in sizes]

    state = {str(region.numel()): region for region in regions}
    sources = capture(state).sources
    found = fingerprint.of_storages(sources)  # type: ignore[arg-type]

    wanted = fingerprint.by_torch([region.cpu() for region in regions])
    assert torch.equal(fingerprint.by_torch(regions).cpu(), wanted)
    assert found == [row.numpy().tobytes() for row in wanted]
