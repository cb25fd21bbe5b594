"""Loads to a device, and into modules and optimizers that live there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.tensors.device import feed
from tests.gpu.streams import Queued, StandIn
from tests.support.captures import Saved
from tests.support.requirements import require_cuda
from tests.support.states import assert_same

Stream = Callable[[], AbstractContextManager[object]]


def model(device: str, seed: int = 1) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.BatchNorm1d(700), torch.nn.Linear(700, 300)).to(
        device
    )


def trained(device: str, seed: int = 1, steps: int = 2) -> tuple[torch.nn.Sequential, torch.optim.AdamW]:
    made = model(device, seed)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-3)
    for _ in range(steps):
        train(made, optimizer, device)
    return made, optimizer


def train(made: torch.nn.Module, optimizer: torch.optim.Optimizer, device: str) -> float:
    optimizer.zero_grad()
    batch = torch.linspace(-1, 1, 8 * 300, device=device).view(8, 300)
    loss = made(batch).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_a_state_is_loaded_to_the_device(store: Store, device: str) -> None:
    state = {"wide": torch.randn(3_000_000, device=device), "turned": torch.randn(50, 60, device=device).t(), "step": 7}
    store.save(state, step=1)

    back = store.load(1, device=torch.device(device))

    assert (back["wide"].device.type, back["turned"].device.type) == (device, device)
    assert torch.equal(back["wide"], state["wide"])  # type: ignore[arg-type]
    assert torch.equal(back["turned"], state["turned"])  # type: ignore[arg-type]
    assert back["step"] == 7


def test_a_state_of_several_slots_for_each_thread_is_loaded(
    store: Store, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "SLOT_BYTES", 2**18)
    monkeypatch.setattr(feed, "_WINDOW_BYTES", 2**16)
    state = {"wide": torch.arange(1_500_007), "odd": torch.arange(300_001, dtype=torch.int32)}
    store.save(state, step=1)
    stand_in.copied.clear()

    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    store.load_into(target, 1)

    assert_same(state, target)
    assert sum(stand_in.copied) == sum(tensor.nbytes for tensor in state.values())
    assert max(stand_in.copied) == 2**18


def test_a_loaded_state_can_be_used_on_any_stream_at_once(store: Store, device: str, side_stream: Stream) -> None:
    store.save({"t": torch.full((3_000_000,), 2.0)}, step=1)

    back = store.load(1, device=device)
    with side_stream():
        total = float(back["t"].sum())

    assert total == 6_000_000


def test_a_load_in_place_waits_for_the_work_that_still_reads_its_target(
    store: Store, device: str, queued: Queued, side_stream: Stream
) -> None:
    target = {"t": torch.ones(3_000_000, device=device)}
    store.save({"t": torch.full((3_000_000,), 2.0)}, step=1)

    with side_stream():
        queued.delay()
        before = target["t"].clone()
        store.load_into(target, 1)
        after = target["t"].clone()

    assert (before.cpu() == 1).all()
    assert (after.cpu() == 2).all()


def test_a_training_goes_on_bit_for_bit_from_a_load_in_place(store: Store, device: str) -> None:
    saved_model, saved_optimizer = trained(device)
    store.save({"model": saved_model, "optimizer": saved_optimizer}, step=1)
    other_model, other_optimizer = trained(device, seed=2, steps=1)
    place = other_model[0].weight

    store.load_into({"model": other_model, "optimizer": other_optimizer}, 1)

    assert other_model[0].weight is place
    assert place.device.type == device
    ours = [train(saved_model, saved_optimizer, device) for _ in range(3)]
    assert [train(other_model, other_optimizer, device) for _ in range(3)] == ours
    assert_same(saved_model.state_dict(), other_model.state_dict())


def test_a_module_of_another_dtype_is_filled_by_a_cast(store: Store, device: str) -> None:
    saved: Any = model("cpu")
    store.save({"model": saved, "t": saved[0].weight.t()}, step=1)
    target: dict[str, Any] = {
        "model": model(device, seed=2).bfloat16(),
        "t": torch.zeros(300, 700, device=device).t().contiguous().t(),
    }
    place = target["model"][0].weight

    report = store.load_into(target, 1, cast=True)

    assert target["model"][0].weight is place
    assert torch.equal(place.cpu(), saved[0].weight.bfloat16())
    assert torch.equal(target["t"].cpu(), saved[0].weight.t())
    assert report.cast


def test_a_target_may_lie_partly_on_the_cpu(store: Store, device: str) -> None:
    store.save({"far": torch.full((1_000,), 2.0), "near": torch.full((1_000,), 3.0, device=device)}, step=1)
    target = {"far": torch.zeros(1_000, device=device), "near": torch.zeros(1_000)}

    store.load_into(target, 1)

    assert (target["far"].cpu() == 2).all()
    assert (target["near"] == 3).all()


def test_tied_targets_are_filled_once_and_stay_tied(store: Store, device: str) -> None:
    weight = torch.randn(70, 30)
    store.save({"embed": weight, "head": weight}, step=1)
    shared = torch.zeros(70, 30, device=device)
    target = {"embed": shared, "head": shared}

    store.load_into(target, 1)

    assert target["embed"] is target["head"]
    assert torch.equal(shared.cpu(), weight)


def test_single_tensors_of_an_open_checkpoint_go_to_the_device(store: Store, device: str) -> None:
    store.save({"a": torch.randn(2_000), "b": torch.ones(1_000)}, step=1)

    back = store.load(1, select=["b"], device=device)

    assert back["b"].device.type == device
    assert (back["b"].cpu() == 1).all()


@pytest.mark.gpu
def test_a_source_on_a_gpu_gives_no_view_of_its_memory() -> None:
    require_cuda()
    memory = torch.rand(100, device="cuda")
    state = {"a": memory, "b": memory[7:9], "t": torch.rand(3, 4, device="cuda").t()}

    saved = Saved(state)
    back = saved.load(device="cuda")

    assert saved.captured.sources[0].view(0, 4) is None
    assert back["a"].is_cuda
    assert_same(state, back)
    assert_same(state, saved.load())
