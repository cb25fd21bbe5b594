"""A state that changes while it is being saved: the save fails or is whole, and no blob's name ever lies."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.errors import StateChanged
from ckstore.fs import files
from ckstore.objects.staging import Staging
from tests.support.stores import check_blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MIB = 2**20


@contextmanager
def changing(change: Callable[[], object]) -> Iterator[None]:
    """Call `change` again and again in another thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            change()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("through", ["torch", "numpy", "small"])
def test_a_thread_that_changes_tensors_during_saves_never_makes_a_blob_lie(store: Store, through: str) -> None:
    big = torch.zeros(6 * MIB, dtype=torch.uint8)
    small = [torch.zeros(1000) for _ in range(200)]
    array = big.numpy()
    changes: dict[str, Callable[[], object]] = {
        "torch": lambda: big.add_(1),
        "numpy": lambda: np.add(array, 1, out=array),
        "small": lambda: [t.add_(1) for t in small],
    }
    outcomes = []
    with changing(changes[through]):
        for step in range(15):
            try:
                store.save({"big": big, "small": small}, step)
                outcomes.append("saved")
            except StateChanged as error:
                outcomes.append(str(error))
    for info in store.checkpoints():
        store.load(info)

    check_blobs(store.path)
    assert {info.step for info in store.checkpoints()} == {i for i, what in enumerate(outcomes) if what == "saved"}
    assert all(what == "saved" or "was changed while it was being saved" in what for what in outcomes)


def test_a_tensor_that_changes_between_its_chunks_fails_the_save_by_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    state: dict[str, Any] = {"a": torch.zeros(3 * MIB, dtype=torch.uint8), "b": torch.ones(10)}
    hit = threading.Event()
    put = Staging.put_parts

    def change_after_the_first_chunk(self: Staging, digest: str, parts: Iterable[memoryview], nbytes: int) -> bool:
        done = put(self, digest, parts, nbytes)
        if not hit.is_set():
            hit.set()
            state["a"].add_(1)
        return done

    monkeypatch.setattr(Staging, "put_parts", change_after_the_first_chunk)

    with pytest.raises(StateChanged, match=r"^a was changed while it was being saved"):
        store.save(state)

    assert store.checkpoints() == []
    assert store.save(state).step == 0


@pytest.mark.parametrize("reads_back", [False, True], ids=["written", "compared"])
def test_writes_that_torch_does_not_count_are_found(
    store: Store, monkeypatch: pytest.MonkeyPatch, reads_back: bool
) -> None:
    store.config.read_back = reads_back
    array = np.random.default_rng(0).integers(0, 200, 2 * MIB, dtype=np.uint8)  # two chunks that differ
    claim = Staging.claim

    def change_after_the_hash(self: Staging, digest: str, nbytes: int) -> bool:
        array[7] += 1
        return claim(self, digest, nbytes)

    monkeypatch.setattr(Staging, "claim", change_after_the_hash)

    with pytest.raises(StateChanged, match=r"^w was changed"):
        store.save({"w": array})

    assert store.checkpoints() == []


def test_a_tensor_that_changes_between_two_parts_of_a_chunk_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.random.default_rng(0).integers(0, 200, 5 * MIB, dtype=np.uint8)
    create, written = files.create_blob, []

    def change_after_the_first_part(path: Any, parts: Iterable[memoryview]) -> None:
        def changing() -> Iterator[memoryview]:
            for part in parts:
                written.append(len(part))
                yield part
                array[-1] += 1

        create(path, changing())

    with Store.init(tmp_path / "store", chunk_bytes=8 * MIB) as store:
        with monkeypatch.context() as patch:
            patch.setattr(files, "create_blob", change_after_the_first_part)
            with pytest.raises(StateChanged, match=r"^w was changed"):
                store.save({"w": array})
        assert written == [2 * MIB, 2 * MIB, MIB]
        assert store.checkpoints() == []
        assert list((store.path / "staging").iterdir()) == []
        store.save({"w": array})
        assert np.array_equal(store.load()["w"], array)
