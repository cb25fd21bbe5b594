"""A save or a load leaves no cycle of references that keeps the state in memory until Python's collector runs."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ckstore import Store
from ckstore.errors import DoesNotFit, InsufficientSpace
from ckstore.model.manifest.manifest import Manifest
from ckstore.objects.staging import Staging
from tests.support.own_loaders import History
from tests.support.stores import check_store

_CHUNKS = 3
"""Of 32 MiB at most, so that equal ones meet in one save."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store", chunk_bytes=2**20)


def _is_held(make: Callable[[], Any], act: Callable[[Any], object]) -> bool:
    """Whether an object is there after an act on it, although the caller has let it go."""
    value = make()
    alive = weakref.ref(value)
    act(value)
    del value
    return alive() is not None


def test_an_array_with_equal_chunks_is_free_after_its_save(store: Store) -> None:
    assert not _is_held(lambda: np.ones(_CHUNKS * 2**17), lambda array: store.save({"w": array}))
    assert not _is_held(lambda: np.random.default_rng(1).random(2**18), lambda array: store.save({"w": array}))


def test_an_array_is_free_after_a_save_that_failed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Staging, "put_parts", full)

    def save(array: object) -> None:
        with pytest.raises(InsufficientSpace):
            store.save({"w": array})

    assert not _is_held(lambda: np.random.default_rng(2).random(2**18), save)


def _meta() -> torch.nn.Module:
    with torch.device("meta"):
        return torch.nn.Linear(8, 8)


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(8, 8), _meta, History], ids=["plain", "meta", "own loader"])
def test_a_module_is_free_after_its_load(store: Store, make: Callable[[], torch.nn.Module]) -> None:
    saved = History() if make is History else torch.nn.Linear(8, 8)
    store.save({"model": saved}, step=1)

    assert not _is_held(make, lambda model: store.load_into({"model": model}, 1, assign=make is _meta))


def test_a_module_is_free_after_a_load_that_was_refused(store: Store) -> None:
    store.save({"model": torch.nn.Linear(8, 8)}, step=1)

    def load(model: object) -> None:
        with pytest.raises(DoesNotFit):
            store.load_into({"model": model}, 1)

    assert not _is_held(lambda: torch.nn.Linear(9, 8), load)


@pytest.mark.parametrize("load", [Store.load, lambda store: store.load_into({"w": np.zeros(3)}), Store.verify])
def test_a_load_leaves_no_manifest_in_memory(store: Store, load: Callable[[Store], object]) -> None:
    def manifest_count() -> int:
        return sum(isinstance(one, Manifest) for one in gc.get_objects())

    store.save({"w": np.ones(3)})
    load(store)
    gc.collect()
    before = manifest_count()

    load(store)

    assert manifest_count() == before
    check_store(store.path)
