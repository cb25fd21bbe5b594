"""Gc and refs believe the catalog where a count says that they may, and find what it was not told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import RetentionPolicy, Store
from ckstore.catalog import Catalog, CatalogUnavailable
from ckstore.errors import CkstoreError
from ckstore.model.info import CheckpointInfo
from ckstore.model.refs import parse_ref, resolve
from ckstore.objects.layout import Layout
from ckstore.ops.find import find, infos
from ckstore.ops.in_step import runs_in_doubt

RUNS = ("main", "side")
HAPPENINGS = ("save", "save unnoticed", "replace unnoticed", "drop", "drop unnoticed", "rm", "tear")


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


@contextmanager
def unnoticed() -> Iterator[None]:
    """What happens meanwhile is not told to the catalog: its owner dies before, or waits too long for the lock."""

    def refuse(*_: Any, **__: Any) -> None:
        raise CatalogUnavailable("not now", why="unreadable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "reconcile", refuse)
        yield


def happen(store: Store, what: str, run: str, step: int, value: int) -> None:
    place = store.path / "checkpoints" / run / str(step)
    if what == "save" and not place.exists():
        store.save(state(value), step, run)
    elif what == "save unnoticed" and not place.exists():
        with unnoticed():
            store.save(state(value), step, run)
    elif not place.exists():
        return
    elif what == "replace unnoticed":
        with unnoticed():
            store.save(state(value), step, run, if_exists="replace")
    elif what == "drop":
        store.delete(f"{run}@{step}")
    elif what == "drop unnoticed" and (place / "manifest.json").exists():
        with unnoticed():
            store.delete(f"{run}@{step}")
    elif what == "rm":
        shutil.rmtree(place)
    elif what == "tear":
        (place / "manifest.json").unlink(missing_ok=True)


def said(ask: Callable[[], object]) -> object:
    """Return the answer, or the kind and the message of the error."""
    try:
        return ask()
    except CkstoreError as error:
        return type(error), error.message


def among_all(store: Store, ref: str) -> CheckpointInfo:
    return resolve(parse_ref(ref), infos(store._context), store._context.layout.tags())


def listed(store: Store) -> dict[tuple[str, int], int]:
    return store._context.catalog.listing()


def there(store: Store) -> dict[tuple[str, int], int]:
    return {
        (run, step): inode
        for run, step, inode in store._context.layout.published()
        if (store.path / "checkpoints" / run / str(step) / "manifest.json").exists()
    }


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    happenings=st.lists(
        st.tuples(st.sampled_from(HAPPENINGS), st.sampled_from(RUNS), st.integers(0, 3)), min_size=1, max_size=8
    ),
    counted=st.booleans(),
)
def test_a_ref_names_what_it_names_among_all(
    tmp_path_factory: pytest.TempPathFactory, happenings: list[tuple[str, str, int]], counted: bool
) -> None:
    with Store.init(tmp_path_factory.mktemp("in-step") / "s") as store, pytest.MonkeyPatch.context() as patch:
        if not counted:  # a filesystem whose directories do not count their subdirectories
            patch.setattr(Layout, "subdirectory_count", lambda *_: 0)
        for value, (what, run, step) in enumerate(happenings):
            if (
                what in ("drop", "replace unnoticed")
                and not (store.path / "checkpoints" / run / str(step) / "manifest.json").exists()
            ):
                continue
            happen(store, what, run, step, value)
        if ("side", 1) in there(store):
            store.tag("best", "side@1")
        context = store._context
        for ref in ("0", "1", "main@0", "main@2", "side@1", "side@3", "best", "main@best", "side@best", "none@1"):
            assert said(partial(find, context, ref)) == said(partial(among_all, store, ref))


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, 3)), max_size=4, unique=True),
    what=st.sampled_from(["save unnoticed", "replace unnoticed", "drop unnoticed"]),
    place=st.tuples(st.sampled_from(RUNS), st.integers(0, 3)),
    counted=st.booleans(),
)
def test_gc_of_an_open_store_learns_of_what_nobody_told_the_catalog(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[str, int]],
    what: str,
    place: tuple[str, int],
    counted: bool,
) -> None:
    with Store.init(tmp_path_factory.mktemp("in-step") / "s") as store, pytest.MonkeyPatch.context() as patch:
        if not counted:
            patch.setattr(Layout, "subdirectory_count", lambda *_: 0)
        for value, (of_run, of_step) in enumerate(before):
            store.save(state(value), of_step, of_run)
        happen(store, what, *place, 1000)

        store.gc()

        assert listed(store) == there(store)
        kept = sum(1 for path in (store.path / "blobs").rglob("*") if path.is_file())
        assert kept == len(there(store))  # each state is another


def test_runs_are_in_doubt_where_counts_differ(store: Store) -> None:
    store.save(state(0), 1)
    store.save(state(1), 1, "side")
    assert runs_in_doubt(store._context) == set()

    (store.path / "checkpoints" / "main" / "notes").mkdir()
    assert runs_in_doubt(store._context) == {"main"}
    (store.path / "checkpoints" / "main" / "notes").rmdir()

    shutil.rmtree(store.path / "checkpoints" / "side")
    assert runs_in_doubt(store._context) == {"side"}
    store.gc()
    assert runs_in_doubt(store._context) == set()


def test_directories_of_runs_are_not_listed_to_free_one_checkpoint(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(0, 20, 2):
        store.save(state(step), step)
    store.save(state(21), 21)
    store.save(state(22), 22)
    store.save(state(23), 23)
    store.save(state(24), 24)
    seen: list[str | None] = []
    published = Layout.published

    def watched(layout: Layout, run: str | None = None) -> Iterator[tuple[str, int, int]]:
        seen.append(run)
        return published(layout, run)

    monkeypatch.setattr(Layout, "published", watched)

    assert store.gc(RetentionPolicy(keep_last=2, keep_every=2)).freed_count == 1
    store.delete(23)
    assert store.gc().freed_count == 0

    assert seen == []
    monkeypatch.undo()
    assert 21 not in [info.step for info in store.checkpoints()]
    assert 23 not in [info.step for info in store.checkpoints()]


def test_what_was_removed_by_hand_is_noticed_by_gc(store: Store, tmp_path: Path) -> None:
    store.save(state(0), 1)
    store.save(state(1), 2)
    shutil.rmtree(store.path / "checkpoints" / "main" / "1")

    assert store.gc().freed_count == 1
    assert list(listed(store)) == [("main", 2)]
