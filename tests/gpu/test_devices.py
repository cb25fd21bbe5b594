"""Transfers that fail, memory that cannot be pinned, and calls that do not wait for the device."""

from __future__ import annotations

import gc
import logging
import weakref
from pathlib import Path

import pytest
import torch

from ckstore import Store
from ckstore.errors import BadInput, SaveFailed
from ckstore.tensors.device import device_copies, pinned, streams
from tests.gpu.streams import Queued, StandIn
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.support.states import assert_same

MIB = 2**20


class Event:
    """What `after=` takes, on the processor."""

    def synchronize(self) -> None:
        """Everything is done."""


def made() -> dict[str, torch.Tensor]:
    small = {f"small.{i}": torch.full((i + 1,), i, dtype=torch.int16) for i in range(300)}
    return {"wide": torch.arange(MIB), **small, "half": torch.ones(MIB, dtype=torch.float16)}


def other(system: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(streams, "system", system)
    return system


def test_small_tensors_are_transferred_together(store: Store, stand_in: StandIn) -> None:
    state = made()

    store.save_async(state, step=1).result(DEADLINE_S)

    assert len(stand_in.copied) == 3, stand_in.copied
    assert_same(state, store.load(1))


class Source:
    """A source on a device that makes its parts when it is asked, as gathered ones do."""

    name, nbytes = "t", 4096

    def flat_parts(self, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        """Return one part."""
        return [(0, torch.ones(stop - start, dtype=torch.uint8))]

    def addresses(self, start: int, stop: int) -> list[tuple[torch.device, int, int]]:
        """It is not asked for a fingerprint."""
        raise NotImplementedError


@pytest.mark.usefixtures("stand_in")
def test_a_source_is_kept_until_its_copy_is_done() -> None:
    source = Source()
    kept = weakref.ref(source)
    flat = torch.zeros(source.nbytes, dtype=torch.uint8)

    copying = device_copies.start([(source, 0)], flat, behind_current=False)
    del source
    gc.collect()

    assert kept() is not None
    copying.wait()
    assert kept() is None
    assert (flat == 1).all()


def test_memory_is_pinned_once_and_unpinned_before_it_goes(store: Store, stand_in: StandIn) -> None:
    state = made()
    for step in range(3):
        state["wide"] += 1
        store.save_async(state, step=step).result(DEADLINE_S)

    assert stand_in.pinnings == 1
    assert sum(stand_in.pinned.values()) == store.background.staging_bytes(state)
    store.close()
    assert not stand_in.pinned


def test_where_nothing_can_be_pinned_everything_works_and_it_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other(StandIn(why_not="CUDA error 2"), monkeypatch)
    monkeypatch.setattr(pinned, "_said", set[str]())
    state = made()

    with Store.init(tmp_path / "store") as store, caplog.at_level(logging.WARNING):
        store.save_async(state, step=1).result(DEADLINE_S)
        state["wide"] += 1
        store.save(state, step=2)
        assert_same(state, store.load(2, device=torch.device("cpu")))

    assert [record.message for record in caplog.records if "pinned" in record.message] == [
        "memory cannot be pinned (CUDA error 2), so copies from and to the GPU are slower; `ulimit -l` may allow it"
    ]


@pytest.mark.parametrize("fails_at", range(4))
def test_a_transfer_that_fails_fails_its_call_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    state = made()
    with Store.init(tmp_path / "store", chunk_bytes=2 * MIB) as store:
        store.save(state, step=1)
        state["wide"] += 1
        for act in (
            lambda: store.save_async(state, step=2).result(DEADLINE_S),
            lambda: store.save(state, step=2),
            lambda: store.load(1, device=torch.device("cpu")),
        ):
            other(StandIn(fails_at=fails_at), monkeypatch)
            if fails_at < 3:
                with pytest.raises(RuntimeError, match="told to fail"):
                    act()
        other(StandIn(), monkeypatch)
        store.save_async(state, step=2).result(DEADLINE_S)
        assert_same(state, store.load(2, device=torch.device("cpu")))
        assert store.verify().ok


def test_with_an_event_the_call_returns_before_the_state_is_copied(store: Store, stand_in: StandIn) -> None:
    state = made()
    stand_in.gate.clear()

    pending = store.save_async(state, step=1, after=Event())

    assert not pending.wait_staged(0.3)
    assert not pending.events
    stand_in.gate.set()
    pending.result(DEADLINE_S)
    assert [event.name for event in pending.events][:2] == ["copied", "staged"]
    assert_same(state, store.load(1))


def test_with_an_event_a_transfer_that_fails_is_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = other(StandIn(fails_at=1), monkeypatch)
    failing.gate.clear()
    state = made()
    with Store.init(tmp_path / "store") as store:
        pending = store.save_async(state, step=1, after=Event())
        failing.gate.set()
        with pytest.raises(SaveFailed, match="copying the state from the device failed"):
            pending.result(DEADLINE_S)
        other(StandIn(), monkeypatch)
        store.save_async(state, step=1).result(DEADLINE_S)
        assert_same(state, store.load(1))


def test_a_store_that_is_closed_first_waits_for_the_copy(store: Store, stand_in: StandIn) -> None:
    state = made()
    for step in range(2):
        store.save_async(state, step=step, after=Event(), max_in_flight=2)
    store.close()

    with Store.open(store.path) as again:
        wait_for(lambda: len(list(again.checkpoints())) == 2, "both are saved")
    # A moment later: the saver publishes first, and tells this process then.
    wait_for(lambda: not stand_in.pinned, "the memory is given back")


def test_after_takes_an_event(store: Store, device: str) -> None:
    with pytest.raises(BadInput, match="after must be an event of a device"):
        store.save_async({"t": torch.ones(3, device=device)}, step=1, after=True)


@pytest.mark.gpu
def test_behind_an_event_the_copy_has_what_comes_before_and_not_what_comes_after(store: Store) -> None:
    from tests.support.requirements import require_cuda

    require_cuda()
    queued = Queued("cuda")
    here = torch.zeros(3_000_000, device="cuda")
    half = torch.zeros(5, dtype=torch.float16, device="cuda")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    with torch.cuda.stream(side):
        queued.fill(here, 5)
        half.fill_(2)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(side)
    pending = store.save_async({"here": here, "half": half}, step=1, after=event)
    here.fill_(-1)  # on the current stream, which comes behind the copy
    half.fill_(-1)
    pending.result(DEADLINE_S)

    assert (store.load(1)["here"] == 5).all()
    assert (store.load(1)["half"] == 2).all()
