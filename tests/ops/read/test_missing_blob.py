"""What needs a blob that is gone is named, whichever way it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ckstore import DamagedBlob, Store
from tests.support.checkpoint_dirs import blobs_dir

MIB = 2**20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.save({"model": {"weight": torch.arange(2 * MIB, dtype=torch.int32)}}, 1)  # 8 chunks: asked for the threads
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 2**13)
    store.commit(tmp_path / "weights.bin", 2)
    for step in (1, 2):
        for blob in blobs_dir(store.path, "main", step).iterdir():
            blob.unlink()
    return store


READS: dict[str, tuple[Callable[[Store, Path], object], str]] = {
    "load": (lambda store, _: store.load(1), "model.weight"),
    "mapped": (lambda store, _: store.load(1, mmap=True), "model.weight"),
    "into": (
        lambda store, _: store.load_into({"model": {"weight": torch.zeros(2 * MIB, dtype=torch.int32)}}, 1),
        "model.weight",
    ),
    "slice": (lambda store, _: _rows(store), "model.weight"),
    "export": (lambda store, out: store.export_safetensors(1, out), "model.weight"),
    "checkout": (lambda store, out: store.checkout(2, out), "weights.bin"),
    "checkout by links": (lambda store, out: store.checkout(2, out, link="hardlink"), "weights.bin"),
}


def _rows(store: Store) -> object:
    with store.open_checkpoint(1) as checkpoint:
        return checkpoint.slice("model.weight")[5:9]


@pytest.mark.parametrize("read, name", READS.values(), ids=READS)
def test_a_blob_that_is_missing_is_told_with_what_needs_it(
    store: Store, tmp_path: Path, read: Callable[[Store, Path], object], name: str
) -> None:
    with pytest.raises(DamagedBlob, match=f"is missing; {name} needs it") as caught:
        read(store, tmp_path / "out")

    assert caught.value.names == (name,)
    assert not (tmp_path / "out").exists()
