"""What has not changed on a device since the last save is not read again; what a digest names was read at some time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import NotUnchanged, StateChanged
from ckstore.saver.client import unchanged_storages
from ckstore.tensors.device import fingerprint
from tests.gpu.streams import StandIn
from tests.saver.conftest import DEADLINE_S
from tests.support.states import assert_same

MIB = 2**20


def made(device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    state = {
        "wide": torch.randn(3 * MIB // 4 + 100, generator=generator),
        "half": torch.randn(1 * MIB, generator=generator).bfloat16(),
        "row": torch.randn(1000, generator=generator),
        "tiny": torch.ones(()),
    }
    return {name: tensor.to(device) for name, tensor in state.items()}


def kept(info: Any) -> int:
    return int(info.counters.kept_bytes)


def test_an_unchanged_state_is_not_read_again(store: Store, device: str, request: pytest.FixtureRequest) -> None:
    state = made(device)
    first = store.save(state, step=1)

    copied = request.getfixturevalue("stand_in").copied if device == "cpu" else []
    copied.clear()
    second = store.save(state, step=2)

    assert (kept(first), kept(second)) == (0, second.logical_bytes)
    assert (second.new_bytes, second.content) == (0, first.content)
    assert sum(copied) == 0, "what is read of the share crosses by itself"
    assert_same(state, store.load(2))


def test_a_chunk_that_changed_is_read_again_and_the_others_are_not(store: Store, device: str) -> None:
    state = made(device)
    store.save(state, step=1)

    state["wide"][MIB // 4 + 5] += 1  # the second of four chunks
    state["row"][999] += 1
    info = store.save(state, step=2)

    assert kept(info) == info.logical_bytes - MIB - 4000
    assert_same(state, store.load(2))


def test_a_state_that_is_saved_in_turn_with_another_is_compared_with_its_own_run(store: Store, device: str) -> None:
    state, other = made(device), made(device)
    other["wide"].add_(1)
    for step in range(2):
        store.save(state, step=step)
        store.save(other, step=step, run="other")
    info = store.save(other, step=2, run="other")

    assert kept(info) == info.logical_bytes
    assert_same(other, store.load("other@1"))


def test_what_was_freed_in_the_store_is_read_again(store: Store, device: str) -> None:
    state = made(device)
    store.save(state, step=1)
    store.delete(1)
    store.gc()

    info = store.save(state, step=2)

    assert info.new_bytes >= state["wide"].nbytes
    assert store.verify().ok
    assert_same(state, store.load(2))


def test_a_tensor_that_changes_during_the_save_fails_it(
    store: Store, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = made(device)
    real, calls = fingerprint.fingerprints, itertools.count()

    def changing(chunks: Sequence[Any]) -> list[bytes]:
        if next(calls) == 1:
            state["half"].data[3] += 1  # not counted by torch
        return real(chunks)

    monkeypatch.setattr(fingerprint, "fingerprints", changing)

    with pytest.raises(StateChanged, match="half"):
        store.save(state, step=1)
    info = store.save(state, step=1)
    assert kept(info) == 0
    assert_same(state, store.load(1))


def test_without_memory_for_fingerprints_everything_is_read(
    store: Store, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = made(device)
    store.save(state, step=1)
    monkeypatch.setattr(fingerprint, "fingerprints", lambda _: [])
    state["wide"][5] += 1

    info = store.save(state, step=2)
    store.save_async(state, step=3).result(DEADLINE_S)

    assert kept(info) == 0
    assert_same(state, store.load(2))
    assert_same(state, store.load(3))


def test_in_the_background_too_an_unchanged_state_is_not_copied(store: Store, device: str) -> None:
    state = made(device)
    infos = []
    for step in range(3):
        infos.append(store.save_async(state, step=step).result(DEADLINE_S))
        if step == 1:
            state["half"][1] += 1
    small = state["row"].nbytes + state["tiny"].nbytes

    assert [kept(info) for info in infos] == [0, infos[0].logical_bytes - small, state["wide"].nbytes]
    assert_same(state, store.load(2))


def test_evidence_that_lies_to_a_background_save_is_not_called_a_word_of_the_caller(
    store: Store, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged_storages, "_SEEN_SHARE", 1.0)
    monkeypatch.setattr(fingerprint, "of_storages", lambda sources: [bytes(16)] * len(sources))
    state = {"wide": made("cpu")["wide"]}
    store.save_async(state, step=1).result(DEADLINE_S)
    state["wide"] += 1

    with pytest.raises(NotUnchanged, match=r"wide has an unchanged fingerprint on its device") as caught:
        store.save_async(state, step=2).result(DEADLINE_S)

    assert "name" not in caught.value.hint
    store.save_async(state, step=2).result(DEADLINE_S)
    assert_same(state, store.load(2))


CHANGES = st.lists(
    st.tuples(st.sampled_from(["wide", "half", "row"]), st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
    max_size=3,
)


def changed(state: dict[str, torch.Tensor], changes: Sequence[tuple[str, float, int]]) -> None:
    for name, place, value in changes:
        flat = state[name].view(-1).view(torch.uint8)
        flat[int(place * flat.numel())] = value


def test_whatever_changes_each_save_has_the_state_as_it_was(store: Store, stand_in: StandIn) -> None:
    runs = itertools.count()

    @given(st.lists(st.tuples(CHANGES, st.booleans()), min_size=1, max_size=4))
    @settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def law(rounds: list[tuple[list[tuple[str, float, int]], bool]]) -> None:
        run, state = f"run-{next(runs)}", made("cpu")
        for step, (changes, in_background) in enumerate(rounds):
            changed(state, changes)
            if in_background:
                store.save_async(state, step=step, run=run).result(DEADLINE_S)
            else:
                store.save(state, step=step, run=run)
            assert_same(state, store.load(f"{run}@{step}"))

    law()
    assert stand_in.copied


def test_a_digest_is_of_bytes_that_were_read_though_every_fingerprint_lies(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evidence that says "unchanged" of everything: each chunk is of a state that was saved, and verifies."""
    monkeypatch.setattr(fingerprint, "fingerprints", lambda chunks: [bytes(16)] * len(chunks))
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        state, was = made("cpu"), []
        for step in range(4):
            changed(state, [("wide", step / 4, 17 + step), ("half", 0.5, step), ("row", 0.0, step)])
            was.append({name: tensor.clone() for name, tensor in state.items()})
            with contextlib.suppress(StateChanged):  # the share that is read again has found a difference
                store.save(state, step=step)
        assert store.verify().ok
        for info in store.checkpoints():
            for name, found in store.load(info.step).items():
                for at in range(0, found.nbytes, MIB):
                    bits = [one[name].view(-1).view(torch.uint8)[at : at + MIB] for one in was]
                    part = found.view(-1).view(torch.uint8)[at : at + MIB]
                    assert any(torch.equal(part, one) for one in bits), (info.step, name, at)
    assert stand_in.copied


def test_where_everything_is_read_again_evidence_that_lies_is_found_out(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "fingerprints", lambda chunks: [bytes(16)] * len(chunks))
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.config.recheck_share = 1
        state = {"wide": made("cpu")["wide"]}
        store.save(state, step=1)
        state["wide"].data[5] += 1
        store.save(state, step=2)
        assert_same(state, store.load(2))
    assert stand_in.copied
