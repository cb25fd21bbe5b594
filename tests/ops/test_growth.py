"""The work of a call grows in proportion to the number of tensors or files, even if it is given a name for each.

The work is counted as calls of Python and C functions, so the result does not depend on the speed of the machine.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.integrations.dcp import CkstoreReader, CkstoreWriter
from ckstore.training import capture, restore
from tests.support.stores import check_store

_DCP: Any = importlib.import_module("torch.distributed.checkpoint")  # its names are not exported
_COUNT = 150
_MOST = 2.25
"""The most that twice as many tensors may cost. A quadratic step adds its calls four times, which exceeds this."""

Act = Callable[[Store, int, Path], Callable[[], object]]
"""Prepares a call in an empty store for a number of tensors, and returns the call."""


def flat(count: int, value: float = 0.0) -> dict[str, torch.Tensor]:
    return {f"layers.{i}.w": torch.full((3,), value * count + i) for i in range(count)}


def nested(count: int, value: float = 0.0) -> dict[str, Any]:
    return {"layers": [{"w": torch.full((3,), value * count + i), "k": i} for i in range(count)]}


def training(count: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.ParameterList(torch.full((2,), float(i)) for i in range(count))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def save(store: Store, count: int, _: Path) -> Callable[[], object]:
    state = nested(count)
    return lambda: store.save(state, step=1)


def save_again(store: Store, count: int, _: Path) -> Callable[[], object]:
    state = flat(count)
    store.save(state, step=1)
    return lambda: store.save({**state, **flat(count // 2, 1.0)}, step=2)


def load(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(nested(count), step=1)
    return lambda: store.load(1)


def load_names(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(flat(count), step=1)
    return lambda: store.load(1, select=[*flat(count)][::2])


def load_globs(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(nested(count), step=1)
    return lambda: store.load(1, select=[f"layers[{i}].*" for i in range(0, count, 2)])


def load_into(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(flat(count), step=1)
    return lambda: store.load_into(flat(count, 1.0), 1)


def load_into_strict(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(flat(count), step=1)
    return lambda: store.load_into(flat(count, 1.0), 1, strict=[*flat(count)])


def load_into_renamed(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save({f"old.{name}": tensor for name, tensor in flat(count).items()}, step=1)
    return lambda: store.load_into(flat(count, 1.0), 1, rename={f"old.{name}": name for name in flat(count)})


def restore_training(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(capture(*training(count)), step=1)
    model, optimizer = training(count)
    return lambda: restore(store, model=model, optimizer=optimizer)


def dcp_save(store: Store, count: int, _: Path) -> Callable[[], object]:
    state = flat(count)
    return lambda: _DCP.save(state, storage_writer=CkstoreWriter(store, step=1), no_dist=True)


def dcp_load(store: Store, count: int, _: Path) -> Callable[[], object]:
    _DCP.save(flat(count), storage_writer=CkstoreWriter(store, step=1), no_dist=True)
    return lambda: _DCP.load(flat(count, 1.0), storage_reader=CkstoreReader(store, 1), no_dist=True)


def diff(store: Store, count: int, _: Path) -> Callable[[], object]:
    store.save(flat(count), step=1)
    store.save(flat(count, 1.0), step=2)
    return lambda: store.diff(1, 2)


def export(store: Store, count: int, folder: Path) -> Callable[[], object]:
    store.save(flat(count), step=1)
    return lambda: store.export_safetensors(1, folder / "out", max_shard_bytes=100, select=[*flat(count)])


def commit(store: Store, count: int, folder: Path) -> Callable[[], object]:
    torch.save(nested(count), folder / "state.pt")
    return lambda: store.commit(folder / "state.pt", step=1)


def check_out(store: Store, count: int, folder: Path) -> Callable[[], object]:
    (folder / "files").mkdir()
    for i in range(count):
        (folder / "files" / f"{i}.txt").write_text(f"{i}", encoding="ascii")
    store.commit(folder / "files", step=1)
    return lambda: store.checkout(1, folder / "out", only=[f"{i}.txt" for i in range(0, count, 2)])


def calls_of(act: Act, count: int, folder: Path) -> int:
    """Return the number of function calls that an act makes in this thread."""
    counted = 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        del frame, argument
        counted += event in ("call", "c_call")

    with tempfile.TemporaryDirectory(dir=folder) as own, Store.init(Path(own) / "store") as store:
        call = act(store, count, Path(own))
        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            call()
        finally:
            sys.setprofile(before)
        check_store(store.path)
    return counted


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize(
    "act",
    [
        save, save_again, load, load_names, load_globs, load_into, load_into_strict, load_into_renamed,
        restore_training, dcp_save, dcp_load, diff, export, commit, check_out,
    ],
)  # fmt: skip
def test_twice_as_many_tensors_cost_at_most_twice_as_many_calls(act: Act, tmp_path: Path) -> None:
    calls_of(act, 3, tmp_path)  # imports and caches

    few, many = (calls_of(act, count, tmp_path) for count in (_COUNT, 2 * _COUNT))

    assert many <= _MOST * few, f"{many} calls instead of {few}"
