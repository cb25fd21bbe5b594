"""Weights that several ranks saved: a publisher reads what it needs of them, and never assembles a tensor."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store
from tests.support.gloo import Group
from tests.support.stores import check_store
from tests.weights.weight_engine import WeightEngine

CASES = Path(__file__).parents[1] / "integrations" / "since_cases.py"
MIB = 2**20
_RANKS = 4


@pytest.fixture(scope="module")
def four(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Four processes."""
    with Group(_RANKS, tmp_path_factory.mktemp("four"), CASES, python=warm / "python") as group:
        yield group


@pytest.mark.parametrize("form", ["overwrite", "xor"])
@pytest.mark.parametrize("dim", [0, 1])
def test_of_a_changed_shard_the_old_bytes_are_read_and_of_its_tensor_the_new_ones(
    dim: int, form: Any, four: Group, tmp_path: Path
) -> None:
    """The checksum of the layout is of the whole tensor, so its unchanged shards are read once, and not compared."""
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    (base / "config.json").write_text("{}")
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    engine = WeightEngine(tmp_path / "local", base)
    with store.publish("main", out, select="model", add=[base], timeout_s=0, difference=form) as publisher:
        four.run("save_model", store=str(store.path), step=1, dim=dim, rank=2)
        assert next(publisher).is_full
        engine.pull(out, 1)
        four.run("save_model", store=str(store.path), step=2, dim=dim, rank=2)
        gc.collect()
        tracemalloc.start()
        before = _read_by_this_process()
        version = next(publisher)
        read_bytes = _read_by_this_process() - before
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    engine.pull(out, 2)

    assert not version.is_full
    # A piece of rows, or a band of the columns of all ranks, which is a chunk. The other tensor is not read.
    assert 16 * MIB + MIB <= read_bytes < 16 * MIB + MIB + MIB // 2
    assert peak_bytes < 24 * MIB  # parts of 8 MiB and a piece; two tensors would be 32
    served, loaded = engine.weights(), store.load(2)["model"]
    assert all(torch.equal(served[name], loaded[name]) for name in loaded)
    store.gc(now=True)
    check_store(store.path)


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_are_converted_by_pieces(dim: int, four: Group, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    (base / "config.json").write_text("{}")
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    engine = WeightEngine(tmp_path / "local", base)
    with store.publish("main", out, select="model", add=[base], timeout_s=0, dtype="bfloat16") as publisher:
        peaks, read_bytes = [], 0
        for step in (1, 2):
            four.run("save_model", store=str(store.path), step=step, dim=dim, rank=2)
            gc.collect()
            tracemalloc.start()
            before = _read_by_this_process()
            assert next(publisher).is_full is (step == 1)
            read_bytes = _read_by_this_process() - before
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            engine.pull(out, step)
            served, saved = engine.weights(), store.load(step)["model"]
            assert all(torch.equal(served[name], saved[name].bfloat16()) for name in saved)

    # As without a conversion: of the changed tensor all, of the old one a chunk, and no whole tensor in memory.
    assert 16 * MIB + MIB <= read_bytes < 16 * MIB + MIB + MIB // 2
    assert max(peaks) < 24 * MIB
    store.gc(now=True)
    check_store(store.path)


def test_equal_pieces_at_other_places_are_compared(four: Group, tmp_path: Path) -> None:
    """The second tensor, cut in its last dimension, has the pieces of the first one, cut in its second dimension."""
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    (base / "config.json").write_text("{}")
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    engine = WeightEngine(tmp_path / "local", base)
    with store.publish("main", out, select="model", add=[base], timeout_s=0) as publisher:
        for step in (1, 2):
            four.run("save_cube", store=str(store.path), step=step)
            assert next(publisher).is_full is (step == 1)
            engine.pull(out, step)
            assert torch.equal(engine.weights()["w"], store.load(step)["model"]["w"])


def _read_by_this_process() -> int:
    return int(Path("/proc/self/io").read_text("ascii").split()[1])
