"""A load: each blob once, after an error no more of them, and read-ahead that suits what it is read from."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import BadInput, DamagedBlob, Store
from ckstore.fs import files
from ckstore.model import names
from ckstore.ops.call_threads import for_each
from ckstore.ops.read import open_checkpoint
from tests.support.damage import blobs_by_size, flip

_ENDED_WITHIN_S = 30.0


@settings(deadline=None)
@given(items=st.lists(st.integers(0, 50)), threads=st.integers(1, 4))
def test_each_is_done_once_and_in_order_by_one_thread(items: list[int], threads: int) -> None:
    done: list[int] = []

    for_each(done.append, items, threads=threads)

    assert sorted(done) == sorted(items)
    if threads == 1:
        assert done == items


def threads_down_to(count: int) -> bool:
    """Whether no more threads are left; one that has said that it ends may need a moment."""
    deadline_s = time.monotonic() + _ENDED_WITHIN_S
    while _thread._count() > count and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return _thread._count() == count


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("error", [ValueError("broken"), IndexError("broken"), KeyboardInterrupt()])
def test_after_an_error_nothing_more_is_begun(threads: int, error: BaseException) -> None:
    begun: list[int] = []
    before = _thread._count()

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise error
        time.sleep(0.02)

    with pytest.raises(type(error)) as raised:
        for_each(work, range(500), threads=threads)

    assert raised.value is error
    assert len(begun) < 100
    assert threads_down_to(before)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a load asks the kernel for the blobs: reads, and ranges to read ahead, with their lengths."""
    found: list[tuple[str, int]] = []
    preadv, advise = os.preadv, os.posix_fadvise

    def recording_reads(fd: int, buffers: list[memoryview], *rest: int) -> int:
        found.append(("read", sum(len(buffer) for buffer in buffers)))
        return preadv(fd, buffers, *rest)

    def recording_advice(fd: int, offset: int, nbytes: int, advice: int) -> None:
        found.append(("ask", nbytes))
        advise(fd, offset, nbytes, advice)

    monkeypatch.setattr(os, "preadv", recording_reads)
    monkeypatch.setattr(os, "posix_fadvise", recording_advice)
    return found


def small_tensors(count: int, value: float = 0.0) -> dict[str, torch.Tensor]:
    """Return tensors of 4 to 800 bytes with different values, so that each of them is a piece of a pack."""
    return {f"layer{i}": torch.full((1 + 37 * i % 200,), value + i) for i in range(count)}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_neighboring_small_tensors_are_read_together(store: Store, calls: list[tuple[str, int]]) -> None:
    state = small_tensors(1000)
    store.save(state, step=1)
    target = small_tensors(1000, 0.5)
    calls.clear()

    assert equal(store.load(1), state)
    store.load_into(target, 1)

    assert equal(target, state)
    assert len(calls) <= 40


@pytest.mark.parametrize("share", [0.0, 0.4, 0.9])
def test_reads_that_return_too_few_bytes_are_completed(
    store: Store, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    state = small_tensors(300)
    store.save(state, step=1)
    preadv = os.preadv

    def short(fd: int, buffers: list[memoryview], *rest: int) -> int:
        nbytes = sum(len(buffer) for buffer in buffers)
        return preadv(fd, [memoryview(bytearray(0)), *cut_to(buffers, max(1, int(share * nbytes)))], *rest)

    monkeypatch.setattr(os, "preadv", short)

    assert equal(store.load(1), state)


def cut_to(buffers: list[memoryview], nbytes: int) -> list[memoryview]:
    """Return the first bytes of buffers."""
    found = []
    for buffer in buffers:
        found.append(memoryview(buffer)[:nbytes])
        nbytes -= len(found[-1])
    return found


@pytest.mark.parametrize("at", [0, 1, 150, 298, 299])
def test_damage_in_a_pack_names_the_tensor(tmp_path: Path, at: int) -> None:
    store = Store.init(tmp_path / "store")
    state = small_tensors(300)
    store.save(state, step=1)
    (pack,) = blobs_by_size(store, 1)
    name = [*state][at]
    flip(pack, pack.read_bytes().index(state[name].numpy().tobytes()), keep_time=True)

    with pytest.raises(DamagedBlob, match=rf"{name} of main@1 is damaged") as raised:
        store.load(1)

    assert raised.value.names == (name,)
    kept = store.load(1, select=[other for other in state if other != name])
    assert equal(kept, {other: value for other, value in state.items() if other != name})


@pytest.fixture
def saved(journaled_tmp_path: Path) -> Store:
    store = Store.init(journaled_tmp_path / "store")
    store.save({"w": np.arange(2**20)}, 1)  # written past the page cache
    return store


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(store: Store) -> None:
    store.save({"w": torch.ones(3)}, step=1)
    opened: list[object] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckstore.ops.read.load.read_memories", lambda *_, **__: opened.append(1))
        with pytest.raises(BadInput, match="device='nowhere' cannot be used"):
            store.load(1, device="nowhere")

    assert opened == []


def loaded(store: Store) -> bool:
    """Load, and say whether it is what was saved."""
    return bool((store.load()["w"] == np.arange(2**20)).all())


def test_a_disk_is_asked_for_one_byte_first_and_for_no_more_than_is_read(
    saved: Store, calls: list[tuple[str, int]]
) -> None:
    assert loaded(saved)

    assert calls[-9:] == [("read", 1)] + 8 * [("read", 2**20)]
    assert not [nbytes for call, nbytes in calls if call == "ask"]


def test_what_lies_on_no_disk_is_asked_for_all_at_once(
    saved: Store, calls: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "on_local_disk", lambda _fd: False)

    assert loaded(saved)
    assert calls[-10:] == [("read", 1), ("ask", 8 * 2**20)] + 8 * [("read", 2**20)]

    calls.clear()
    assert loaded(saved)
    assert not [nbytes for call, nbytes in calls if call == "ask"], "it is in the page cache"


_LOADS = """
import sys
from ckstore import Store
store = Store.open(sys.argv[1], readonly=True)
for read in (store.load, lambda: store.load(1), lambda: store.load("best"), lambda: store.load_into(store.load())):
    read()
    assert not {"ckstore.ops.check.verifier", "ckstore.ops.refs.latest_valid"} & set(sys.modules)
store.load("latest-valid")
assert "ckstore.ops.check.verifier" in sys.modules
"""


def test_only_a_load_of_latest_valid_imports_the_verifier(tmp_path: Path) -> None:
    Store.init(tmp_path / "store").save({"w": np.arange(3)}, 1, tags=["best"])

    done = subprocess.run(
        [sys.executable, "-c", _LOADS, str(tmp_path / "store")], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("read", ["values", "slices", "torch", "dcp"])
def test_values_that_are_read_one_by_one_do_not_have_the_names_of_all_made_each_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """Else a state of thousands of tensors takes minutes: a `state_dict()` has a dot, escaped, in each name."""
    value_count = 40
    weights = {f"layer.{i}.weight": torch.full((3,), float(i)) for i in range(value_count)}
    texts = {f"layer.{i}.text": "x" * 200 + str(i) for i in range(value_count)}
    store.save({"model": {**weights, **texts}}, 1)
    made = 0
    plain = names.plain

    def counted(name: str) -> str:
        nonlocal made
        made += 1
        return plain(name)

    monkeypatch.setattr(names, "plain", counted)
    monkeypatch.setattr(open_checkpoint, "plain", counted)
    if read in ("torch", "dcp"):
        form: Any = read
        store.export(1, tmp_path / "out", format=form)
    else:
        with store.open_checkpoint(1) as checkpoint:
            for i in range(value_count):
                name = f"model.layer.{i}.weight"
                found = checkpoint[name] if read == "values" else checkpoint.slice(name)[0:3]
                assert name in checkpoint
                assert torch.equal(found, weights[name.removeprefix("model.")])

    assert made <= 8 * value_count
