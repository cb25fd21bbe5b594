"""Gc and refs believe the catalog where a count says that they may, and find what it was not told."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import RetentionPolicy, Store
from ckstore.catalog import Catalog
from ckstore.errors import CatalogUnavailable, CkstoreError
from ckstore.model.checkpoint.refs import parse_ref
from ckstore.model.manifest.info import Stamp
from ckstore.model.names import CheckpointKey
from ckstore.objects.layout import Layout
from ckstore.ops.free.reclaim import free_unused
from ckstore.ops.index.reconcile import chosen, runs_in_doubt
from ckstore.ops.refs.find import among_all, find
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.examples import examples

RUNS = ("main", "side")
ODD_RUNS = ("none", "a file", "a loop", "a link", "empty", "moved")
UNNOTICED = ("save unnoticed", "replace unnoticed", "drop unnoticed")
HAPPENINGS = ("save", "save unnoticed", "replace unnoticed", "drop", "drop unnoticed", "rm", "tear")


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


def make_odd(checkpoints: Path, what: str) -> None:
    """Put something beside the runs that looks like one by its name, or move `side` and leave a link to it."""
    odd = checkpoints / "odd"
    if what == "a file":
        odd.write_bytes(b"")
    elif what == "a loop":
        odd.symlink_to("odd")
    elif what == "a link" and (checkpoints / "main").is_dir():
        odd.symlink_to("main")
    elif what == "empty":
        odd.mkdir()
    elif what == "moved" and (checkpoints / "side").is_dir():
        (checkpoints / "side").rename(checkpoints.parent / "moved")
        (checkpoints / "side").symlink_to("../moved")


@pytest.fixture
def counting(tmp_path: Path) -> None:
    """For a test of what only a filesystem shows whose directories count their subdirectories."""
    (tmp_path / "run" / "1").mkdir(parents=True)
    if (tmp_path / "run").stat().st_nlink != 3:
        pytest.skip("directories do not count their subdirectories on the filesystem of the temporary directory")


@contextmanager
def unnoticed() -> Iterator[None]:
    """What happens meanwhile is not told to the catalog: its owner dies before, or waits too long for the lock."""

    def refuse(*_: Any, **__: Any) -> None:
        raise CatalogUnavailable("not now", why="unreadable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "reconcile", refuse)
        yield


def happen(store: Store, what: str, run: str, step: int, value: int) -> None:
    place = checkpoint_dir(store.path, run, step)
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


def listed(store: Store) -> dict[CheckpointKey, Stamp]:
    return store._context.catalog.listing()


def there(store: Store) -> dict[CheckpointKey, Stamp]:
    return {key: stamp for key, stamp in store._context.layout.stamps().items() if stamp is not None}


def steps(stamps: Iterable[CheckpointKey]) -> list[tuple[str, int]]:
    return sorted(key.run_step for key in stamps)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(max_examples=examples(7), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    happenings=st.lists(
        st.tuples(st.sampled_from(HAPPENINGS), st.sampled_from(RUNS), st.integers(0, 3)), min_size=1, max_size=8
    ),
    odd_run=st.sampled_from(ODD_RUNS),
)
def test_a_ref_names_what_it_names_among_all(
    tmp_path_factory: pytest.TempPathFactory, happenings: list[tuple[str, str, int]], odd_run: str
) -> None:
    with Store.init(tmp_path_factory.mktemp("in-step") / "s") as store:
        for value, (what, run, step) in enumerate(happenings):
            if what in ("drop", "replace unnoticed") and (run, step) not in steps(there(store)):
                continue
            happen(store, what, run, step, value)
        if ("side", 1) in steps(there(store)):
            store.tag("best", "side@1")
        make_odd(store.path / "checkpoints", odd_run)
        for ref in (
            "0",
            "1",
            "main@0",
            "main@2",
            "side@1",
            "side@3",
            "odd@1",
            "best",
            "main@best",
            "side@best",
            "no@1",
        ):
            assert said(partial(find, store._context, ref)) == said(partial(among_all, store._context, parse_ref(ref)))


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, 3)), max_size=4, unique=True),
    happened=st.lists(
        st.tuples(st.sampled_from(UNNOTICED), st.sampled_from(RUNS), st.integers(0, 3)), min_size=1, max_size=2
    ),
    counted=st.booleans(),
)
def test_gc_of_an_open_store_learns_of_what_the_catalog_was_not_told(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[str, int]],
    happened: list[tuple[str, str, int]],
    counted: bool,
) -> None:
    with Store.init(tmp_path_factory.mktemp("in-step") / "s") as store, pytest.MonkeyPatch.context() as patch:
        if not counted:  # a filesystem whose directories do not count their subdirectories
            patch.setattr(Layout, "subdirectory_count", lambda *_: 0)
        for value, (run, step) in enumerate(before):
            store.save(state(value), step, run)
        for value, (what, run, step) in enumerate(happened, 1000):
            happen(store, what, run, step, value)

        # One published and one dropped, as by one that replaces, look like none; once one is known the other shows.
        for _ in range(2 * len(happened)):
            store.gc()

        assert listed(store) == there(store)
        kept = sum(1 for path in (store.path / "blobs").rglob("*") if path.is_file())
        assert kept == len(there(store))  # each state is another


@pytest.mark.usefixtures("counting")
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


@pytest.mark.usefixtures("counting")
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

    def watched(layout: Layout, run: str | None = None) -> Iterator[tuple[CheckpointKey, int]]:
        seen.append(run)
        return published(layout, run)

    monkeypatch.setattr(Layout, "published", watched)

    assert store.prune(RetentionPolicy(keep_last=2, keep_every=2)).freed_count == 1
    store.delete(23)
    assert store.gc().freed_count == 0

    assert seen == []
    monkeypatch.undo()
    assert 21 not in [info.step for info in store.checkpoints()]
    assert 23 not in [info.step for info in store.checkpoints()]


def test_what_was_removed_by_hand_is_noticed_by_gc(store: Store, tmp_path: Path) -> None:
    store.save(state(0), 1)
    store.save(state(1), 2)
    shutil.rmtree(checkpoint_dir(store.path, "main", 1))

    assert store.gc().freed_count == 1
    assert steps(listed(store)) == [("main", 2)]


def test_what_is_chosen_is_there_as_the_catalog_has_it(store: Store) -> None:
    context = store._context
    for step in range(1, 6):
        store.save(state(step), step)
    assert steps(chosen(context, "main", newest=1, off_every=2) or ()) == [("main", step) for step in (1, 3, 5)]

    with unnoticed():
        store.save(state(10), 3, if_exists="replace")
    assert chosen(context, "main", newest=1, off_every=2) is None
    assert steps(chosen(context, "main", newest=1, off_every=3) or ()) == [("main", step) for step in (1, 2, 4, 5)]

    with unnoticed():
        store.save(state(11), 6)
    assert chosen(context, "main", newest=1, off_every=3) is None


@pytest.mark.parametrize("run", ["a file", "a loop", "gone"])
def test_what_was_dropped_is_taken_apart_whatever_is_in_the_place_of_its_run(store: Store, run: str) -> None:
    store.save(state(0), 1)
    store.save(state(1), 1, "odd")
    with unnoticed():
        store.delete("odd@1")
    (store.path / "checkpoints" / "odd").rmdir()
    make_odd(store.path / "checkpoints", run)

    assert store.gc().freed_count == 1
    assert os.listdir(store.path / "trash") == []
    assert steps(listed(store)) == [("main", 1)]
    (store.path / "checkpoints" / "odd").unlink(missing_ok=True)


def damage_table(catalog: Path, table: str) -> None:
    """Overwrite the first page of a table: it cannot be written any more, and other tables can be read."""
    with closing(sqlite3.connect(catalog)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchall()
        ((page_bytes,),) = connection.execute("PRAGMA page_size").fetchall()
    with catalog.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_a_catalog_that_can_only_be_read_is_rebuilt_by_the_next_gc(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=2)
    for step in range(3):
        store.save(state(step), step)
    damage_table(store.path / "catalog.db", "uses")

    for step in range(3, 6):  # as many checkpoints come as go
        assert store.save(state(step), step).step == step

    assert store.gc().freed_count == 0
    assert os.listdir(store.path / "trash") == []
    assert listed(store) == there(store)
    assert sum(1 for path in (store.path / "blobs").rglob("*") if path.is_file()) == 2


def test_where_the_catalog_refuses_last_links_still_go(store: Store) -> None:
    for step in range(3):
        store.save(state(step), step)
    with unnoticed():
        for step in range(2):
            store.delete(step)
    for path in (store.path / "blobs").rglob("*"):
        if path.is_file() and path.stat().st_nlink == 2 and any((store.path / "trash").rglob(path.name)):
            path.unlink()

    with unnoticed():
        free_unused(store._context)

    assert [path for path in (store.path / "trash").rglob("*") if path.is_file() and path.name != "manifest.json"] == []
    store.gc()
    assert os.listdir(store.path / "trash") == []
