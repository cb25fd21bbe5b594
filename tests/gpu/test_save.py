"""What a save of tensors on a device stores: the bytes that they have when the work queued before is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from ckstore import Store
from ckstore.objects.staging import Staging
from ckstore.tensors.device import pinned
from tests.gpu.streams import Queued
from tests.saver.conftest import DEADLINE_S
from tests.support.requirements import require_cuda
from tests.support.states import TORCH_DTYPES, assert_same

Stream = Callable[[], AbstractContextManager[object]]


def drawn(dtype: torch.dtype, count: int, device: str) -> torch.Tensor:
    """Return a tensor whose bits are random and valid for its dtype."""
    generator = torch.Generator().manual_seed(count)
    top = 2 if dtype is torch.bool else 256
    bits = torch.randint(0, top, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype).to(device)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_dtype_is_kept_bit_for_bit(store: Store, device: str, dtype: torch.dtype) -> None:
    tensor = drawn(dtype, 1001, device)

    store.save({"t": tensor}, step=1)

    assert torch.equal(store.load(1)["t"].view(torch.uint8), tensor.cpu().view(torch.uint8))


def test_views_and_strides_are_kept(store: Store, device: str) -> None:
    base = torch.arange(6_000, dtype=torch.float32, device=device)
    state = {
        "turned": base[:3_000].view(50, 60).t(),
        "every_third": base[::3],
        "middle": base[100:200],
        "spread": torch.ones(3, 1, device=device).expand(3, 40),
        "scalar": base.sum(),
        "empty": base[:0],
    }

    store.save(state, step=1)

    assert_same(state, store.load(1))


def test_tied_tensors_are_stored_once_and_come_back_tied(store: Store, device: str) -> None:
    weight = torch.randn(700, 300, device=device)

    info = store.save({"embed": weight, "head": weight, "row": weight[3]}, step=1)
    back = store.load(1, device=device)

    assert info.logical_bytes == weight.nbytes
    assert back["embed"].data_ptr() == back["head"].data_ptr()
    assert back["row"].untyped_storage().data_ptr() == back["embed"].untyped_storage().data_ptr()
    assert torch.equal(back["row"], weight[3])


def test_a_state_may_lie_partly_on_the_cpu(store: Store, device: str) -> None:
    state = {"far": torch.randn(1_000, device=device), "near": torch.randn(1_000), "step": 7, "list": [1, 2.5, "three"]}

    store.save(state, step=1)
    back = store.load(1)

    assert torch.equal(back["far"], state["far"].cpu())  # type: ignore[attr-defined]
    assert torch.equal(back["near"], state["near"])  # type: ignore[arg-type]
    assert (back["step"], back["list"]) == (7, [1, 2.5, "three"])


def test_work_queued_before_the_save_is_in_it(store: Store, device: str, queued: Queued) -> None:
    tensor = torch.zeros(3_000_000, device=device)

    queued.fill(tensor, 5)
    store.save({"t": tensor}, step=1)

    assert (store.load(1)["t"] == 5).all()


def test_work_queued_on_another_stream_is_in_it(store: Store, device: str, queued: Queued, side_stream: Stream) -> None:
    tensor = torch.zeros(3_000_000, device=device)

    with side_stream():
        queued.fill(tensor, 5)
    store.save({"t": tensor}, step=1)  # on the default stream, which does not wait for the other one

    assert (store.load(1)["t"] == 5).all()


def test_a_save_from_another_stream_has_what_that_stream_computed(
    store: Store, device: str, queued: Queued, side_stream: Stream
) -> None:
    tensor = torch.zeros(3_000_000, device=device)

    with side_stream():
        queued.fill(tensor, 5)
        store.save({"t": tensor}, step=1)
        tensor.fill_(-1)

    assert (store.load(1)["t"] == 5).all()


def test_a_changed_tensor_is_saved_again_and_an_unchanged_one_is_not(store: Store, device: str) -> None:
    state = {"changes": torch.randn(600_000, device=device), "stays": torch.randn(600_000, device=device)}
    before = state["changes"].clone()
    store.save(state, step=1)

    state["changes"].add_(2)
    info = store.save(state, step=2)

    assert info.new_bytes == state["changes"].nbytes
    assert torch.equal(store.load(1)["changes"], before.cpu())
    assert_same(state, store.load(2))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_chunk_that_was_left_to_another_and_is_not_there_is_read_again_and_leaves_no_buffer(
    store: Store, device: str, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    chunk = torch.randint(0, 2**31 - 1, (2**18,), dtype=torch.int32)  # a MiB, as the store cuts
    state = {name: chunk.clone().to(device) for name in ("one", "other")}
    used = []
    take, give = pinned.pool.take, pinned.pool.give

    def taken(nbytes: int) -> pinned.Buffer:
        used.append(take(nbytes))
        return used[-1]

    def given(buffer: pinned.Buffer) -> None:
        used.remove(buffer)
        give(buffer)

    monkeypatch.setattr(pinned.pool, "take", taken)
    monkeypatch.setattr(pinned.pool, "give", given)
    keep_exactly = Staging.keep_exactly

    def lose_first(staging: Staging, wanted: dict[str, int]) -> list[str]:
        for digest in wanted:
            staging.unclaim(digest)
        monkeypatch.setattr(Staging, "keep_exactly", keep_exactly)
        return keep_exactly(staging, wanted)

    if is_known:
        store.save(state, step=1)
    monkeypatch.setattr(Staging, "keep_exactly", lose_first)

    store.save(state, step=2)

    assert_same({name: tensor.cpu() for name, tensor in state.items()}, store.load(2))
    assert used == []


@pytest.mark.gpu
def test_what_a_replayed_graph_computes_is_in_the_save(store: Store) -> None:
    require_cuda()
    tensor = torch.zeros(3_000_000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)

    for _ in range(3):
        graph.replay()
    pending = store.save_async({"t": tensor}, step=3)
    graph.replay()
    store.save({"t": tensor}, step=4)
    pending.result(DEADLINE_S)

    assert (store.load(3)["t"] == 3).all()
    assert (store.load(4)["t"] == 4).all()


@pytest.mark.gpu
def test_a_state_on_two_gpus_is_one_state(store: Store) -> None:
    require_cuda()
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    state = {str(number): torch.full((1_000_000,), float(number), device=f"cuda:{number}") for number in range(2)}
    for tensor in state.values():
        tensor.add_(1)

    store.save(state, step=1)

    assert all((store.load(1)[name] == int(name) + 1).all() for name in state)
