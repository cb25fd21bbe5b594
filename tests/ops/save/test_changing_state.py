"""A state that changes while it is being saved: the save fails or is whole, and no blob's name ever lies."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.errors import StateChanged
from ckstore.fs import files
from ckstore.fs.mapping import map_shared
from ckstore.fs.memory_file import open_memory
from ckstore.model.manifest.captured import BytesSource, RangeSource
from ckstore.model.manifest.manifest import Description
from ckstore.objects.staging import Staging
from ckstore.ops.save.save import Request, save_captured
from ckstore.tensors.state_capture import capture
from tests.support.stores import check_blobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ckstore.model.manifest.captured import ByteSource

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


@contextmanager
def shared(data: np.ndarray[Any, Any]) -> Iterator[tuple[memoryview, memoryview]]:
    """Give memory with these bytes that another process may have as well, as a snapshot is: to read, and to write."""
    with open(open_memory("test"), "wb", buffering=0) as file:
        file.write(data.tobytes())
        whole = map_shared(file.fileno(), data.nbytes, writable=True)
        yield map_shared(file.fileno(), data.nbytes, writable=False), whole


def save_from(store: Store, source: ByteSource, array: np.ndarray[Any, Any]) -> None:
    """Save `array` with the bytes that a source has of it."""
    captured = replace(capture({"w": array}), sources=(source,))
    save_captured(store._context, captured, Request("main", None, Description(), (), "error"))


@pytest.mark.parametrize("reads_back", [False, True], ids=["written", "compared"])
def test_bytes_that_nothing_writes_to_are_written_from_where_they_lie(
    journaled_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_back: bool
) -> None:
    array = np.random.default_rng(0).integers(0, 200, 5 * MIB + 12, dtype=np.uint8)
    real, direct = os.write, list[int]()

    def write(fd: int, data: memoryview) -> int:
        count = real(fd, data)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            direct.append(count)
        return count

    with shared(array) as (memory, _), closing(Store.init(journaled_tmp_path / "store", chunk_bytes=8 * MIB)) as store:
        store.config.read_back = reads_back
        with monkeypatch.context() as patch:
            patch.setattr(BytesSource, "read_into", None)  # no copy is made
            patch.setattr(os, "write", write)
            save_from(store, BytesSource("w", memory), array)

        assert sum(direct) == 5 * MIB
        assert np.array_equal(store.load()["w"], array)
        check_blobs(store.path)


def test_live_memory_in_a_mapping_is_copied_and_hashed_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).integers(0, 200, MIB, dtype=np.uint8)
    claim = Staging.claim

    with shared(array) as (memory, writable):

        def change_after_the_hash(self: Staging, digest: str, nbytes: int) -> bool:
            writable[7] ^= 1
            return claim(self, digest, nbytes)

        monkeypatch.setattr(Staging, "claim", change_after_the_hash)

        with pytest.raises(StateChanged, match=r"^w was changed"):
            save_from(store, RangeSource(BytesSource("w", memory), 0, MIB), array)
