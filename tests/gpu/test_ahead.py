"""Copies begin before the state is walked through, and a save has the state as it is found by the walk."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.errors import CannotStore
from ckstore.saver.client.ahead import HeadStarts
from ckstore.saver.client.snapshot import SnapshotPool
from ckstore.tensors.device import streams
from ckstore.tensors.state_capture import capture
from tests.gpu.streams import StandIn
from tests.saver.conftest import DEADLINE_S
from tests.support.states import assert_same

MIB = 2**20


class Hook:
    """A part of a state that does something when the state is walked through."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def state_dict(self) -> dict[str, Any]:
        self.act()
        return {"number": 1}

    def load_state_dict(self, _: dict[str, Any]) -> None:
        """It is not loaded here."""


def made(device: str) -> dict[str, torch.Tensor]:
    wide = torch.arange(MIB // 2, device=device)
    return {"row": torch.ones(10, device=device), "wide": wide, "half": torch.ones(MIB, device=device).half()}


def saved(store: Store, state: dict[str, Any], step: int, act: Callable[[], object] = lambda: None) -> Any:
    return store.save_async({**state, "hook": Hook(act)}, step=step).result(DEADLINE_S)


def begun(store: Store, state: dict[str, torch.Tensor]) -> None:
    """Save once, and change what is large."""
    saved(store, state, 1)
    state["wide"] += 1
    state["half"] += 1


def assert_saved(store: Store, state: dict[str, torch.Tensor], step: int) -> None:
    found = store.load(step)
    assert_same(state, {name: found[name] for name in state})


def test_what_changed_is_on_its_way_before_the_state_is_walked_through(store: Store, stand_in: StandIn) -> None:
    state, seen = made("cpu"), []
    begun(store, state)
    state["half"] -= 1  # as it was saved
    stand_in.copied.clear()

    saved(store, state, 2, lambda: seen.extend(stand_in.copied))

    assert seen == [state["wide"].nbytes]
    assert sum(stand_in.copied) < state["wide"].nbytes + MIB, "it is copied once"
    assert_saved(store, state, 2)


@pytest.mark.parametrize("is_counted", [True, False])
def test_what_changes_before_the_walk_comes_to_it_is_saved_as_the_walk_finds_it(
    store: Store, device: str, is_counted: bool
) -> None:
    state = made(device)
    begun(store, state)
    wide = state["wide"] if is_counted else state["wide"].data

    def act() -> None:
        streams.system.synchronize(torch.device(device))  # what was begun is copied by now
        wide.add_(5)

    walked = {"hook": Hook(act), **state}

    store.save_async(walked, step=2).result(DEADLINE_S)

    assert_saved(store, state, 2)


def moved(state: dict[str, torch.Tensor]) -> None:
    state["wide"] = state["wide"].clone()


def swapped(state: dict[str, torch.Tensor]) -> None:
    state["wide"], state["half"] = state["half"], state["wide"]


def fewer(state: dict[str, torch.Tensor]) -> None:
    del state["row"]


def grown(state: dict[str, torch.Tensor]) -> None:
    state["more"] = torch.ones(MIB, device=state["wide"].device)


def emptied(state: dict[str, torch.Tensor]) -> None:
    state["wide"].untyped_storage().resize_(0)
    del state["wide"]


def shorter(state: dict[str, torch.Tensor]) -> None:
    state["wide"] = state["wide"][: MIB // 4]


@pytest.mark.parametrize("act", [moved, swapped, fewer, grown, emptied, shorter])
def test_whatever_lies_elsewhere_than_before_is_saved_as_it_is(
    store: Store, device: str, act: Callable[[dict[str, torch.Tensor]], None]
) -> None:
    state = made(device)
    begun(store, state)
    act(state)

    saved(store, state, 2)

    assert_saved(store, state, 2)


def test_a_call_that_is_refused_leaves_the_memory_for_the_next(store: Store, device: str) -> None:
    state = made(device)
    begun(store, state)

    with pytest.raises(CannotStore):
        store.save_async({**state, "lambda": lambda: 0}, step=2)
    state["wide"] += 1
    saved(store, state, 2)

    assert_saved(store, state, 2)


def test_two_runs_in_turn_and_two_saves_in_flight_each_have_their_own_state(store: Store, device: str) -> None:
    states = [made(device), made(device)]
    expected: dict[str, dict[str, torch.Tensor]] = {}
    for step in range(4):
        for number, state in enumerate(states):
            state["wide"] += 1 + number
            expected[f"run{number}@{step}"] = {name: tensor.clone() for name, tensor in state.items()}
            store.save_async(state, step=step, run=f"run{number}", max_in_flight=2)
    assert store.background.wait(DEADLINE_S)

    for name, state in expected.items():
        assert_same(state, store.load(name))


def test_what_is_remembered_keeps_no_memory(stand_in: StandIn) -> None:
    state, remembered = made("cpu"), HeadStarts()
    sources = capture(state).sources
    remembered.remember("main", sources, {0: b"", 1: bytes(16), 2: bytes(16)}, ())
    del state, sources
    gc.collect()

    started = remembered.begin("main", SnapshotPool(), 1)

    assert not started.waited
    started.give_up()
    assert not stand_in.copied
