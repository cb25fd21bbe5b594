"""A background save has the state as it was at the call: it may change, or be freed, as soon as the call returns."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from ckstore import Store
from tests.gpu.streams import Queued
from tests.saver.conftest import DEADLINE_S
from tests.support.states import TORCH_DTYPES

Stream = Callable[[], AbstractContextManager[object]]


def test_a_state_is_saved_as_it_was_at_the_call(store: Store, device: str) -> None:
    generator = torch.Generator(device=device).manual_seed(7)
    wide = torch.randn(3_000_000, device=device, generator=generator)
    state = {"wide": wide, "half": wide[:1001].to(torch.bfloat16), "turned": wide[:3000].view(50, 60).t()}
    expected = {name: tensor.clone().cpu() for name, tensor in state.items()}

    pending = store.save_async(state, step=1)
    wide.fill_(-1)
    state["half"].fill_(-1)
    pending.result(DEADLINE_S)

    loaded = store.load(1)
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


def test_every_dtype_reaches_the_saver_bit_for_bit(store: Store, device: str) -> None:
    bits = torch.randint(0, 2, (1_600,), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    state = {str(dtype): bits.view(dtype).to(device) for dtype in TORCH_DTYPES}

    store.save_async(state, step=1).result(DEADLINE_S)

    loaded = store.load(1)
    for name, tensor in state.items():
        assert torch.equal(loaded[name].view(torch.uint8), tensor.cpu().view(torch.uint8)), name


def test_work_queued_before_the_call_is_in_the_save(
    store: Store, device: str, queued: Queued, side_stream: Stream
) -> None:
    here, there = (torch.zeros(3_000_000, device=device) for _ in range(2))

    queued.fill(here, 5)
    with side_stream():
        queued.fill(there, 6)
    pending = store.save_async({"here": here, "there": there}, step=1)
    here.fill_(-1)
    there.fill_(-1)
    pending.result(DEADLINE_S)

    assert (store.load(1)["here"] == 5).all()
    assert (store.load(1)["there"] == 6).all()


def test_a_call_from_another_stream_has_what_that_stream_computed(
    store: Store, device: str, queued: Queued, side_stream: Stream
) -> None:
    tensor = torch.zeros(3_000_000, device=device)

    with side_stream():
        queued.fill(tensor, 5)
        pending = store.save_async({"t": tensor}, step=1)
        tensor.fill_(-1)
    pending.result(DEADLINE_S)

    assert (store.load(1)["t"] == 5).all()


def test_memory_that_is_freed_right_after_the_call_may_be_used_again(store: Store, device: str, queued: Queued) -> None:
    state = {str(number): torch.full((1_000_000,), float(number), device=device) for number in range(8)}

    pending = store.save_async(state, step=1)
    del state
    gc.collect()
    others = [queued.reuse(4_000_000) for _ in range(8)]
    pending.result(DEADLINE_S)

    assert all(int(other[0]) == 0xEE for other in others)
    assert all((store.load(1)[str(number)] == number).all() for number in range(8))


def test_tied_tensors_and_tensors_on_the_cpu_go_to_the_saver_together(store: Store, device: str) -> None:
    weight = torch.randn(700, 300, device=device)
    state = {"embed": weight, "head": weight, "near": torch.ones(1_000), "step": 7}
    expected = weight.clone().cpu()

    pending = store.save_async(state, step=1)
    weight.zero_()
    state["near"].zero_()  # type: ignore[attr-defined]
    info = pending.result(DEADLINE_S)

    back = store.load(1)
    assert info.logical_bytes == weight.nbytes + 4_000
    assert back["embed"].data_ptr() == back["head"].data_ptr()
    assert torch.equal(back["head"], expected)
    assert (back["near"] == 1).all()


@pytest.mark.slow
def test_ten_saves_one_after_another_each_have_their_own_state(store: Store, device: str) -> None:
    tensor = torch.zeros(1_000_000, device=device)
    pending = []

    for step in range(10):
        tensor.fill_(step)
        pending.append(store.save_async({"t": tensor}, step=step))
    for save in pending:
        save.result(DEADLINE_S)

    assert all((store.load(step)["t"] == step).all() for step in range(10))
