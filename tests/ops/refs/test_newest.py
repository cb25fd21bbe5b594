"""The newest checkpoints alone are found as they are found among all of them, and cost no look at the others."""

from __future__ import annotations

import shutil
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore import Store
from ckstore.catalog.catalog import Catalog
from ckstore.errors import AmbiguousRef, BadInput, NoSuchRef, NoWholeCheckpoint
from ckstore.model.names import CheckpointKey
from ckstore.objects import checkpoints as directories
from ckstore.objects.layout import Layout, OpenRuns
from ckstore.ops.index import facts
from ckstore.ops.refs.listing import infos
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.examples import examples
from tests.support.meanwhile import elsewhere
from tests.support.stores import check_store

RUNS = ("main", "side")
TROUBLES = ("none", "torn", "replaced", "catalog lost", "annotated", "tagged")


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


def in_trouble(store: Store, trouble: str) -> None:
    """Bring one or all checkpoints into a state that listing has to see through."""
    (newest,) = store.checkpoints(newest=1)
    folder = checkpoint_dir(store.path, newest.run, newest.step)
    if trouble == "torn":
        (folder / "manifest.json").unlink()
    elif trouble == "replaced":
        shutil.copytree(folder, folder.with_name("copy"))
        shutil.rmtree(folder)
        folder.with_name("copy").rename(folder)
    elif trouble == "catalog lost":
        for path in store.path.glob("catalog.db*"):
            path.unlink()
    elif trouble == "annotated":
        store.annotate(newest, metrics={"late": 1.0})
    elif trouble == "tagged":
        store.tag("best", newest)


@pytest.mark.filterwarnings(
    "ignore:the catalog:ckstore.CkstoreWarning",
    "ignore:(latest is|checkpoints are incomplete or damaged):ckstore.CkstoreWarning",
)
@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.lists(st.sampled_from(RUNS), min_size=2, max_size=8),
    trouble=st.sampled_from(TROUBLES),
    newest=st.integers(1, 10),
    run=st.none() | st.sampled_from(RUNS),
    few=st.sampled_from([0, facts.FEW]),
)
def test_they_are_the_last_of_all(  # noqa: PLR0917 - one for each thing that is drawn
    tmp_path_factory: pytest.TempPathFactory, order: list[str], trouble: str, newest: int, run: str | None, few: int
) -> None:
    with patch.object(facts, "FEW", few), Store.init(tmp_path_factory.mktemp("newest") / "s") as store:
        for value, name in enumerate(order):
            store.save(state(value), value, name, metrics={"value": value})
        in_trouble(store, trouble)

        everything = store.checkpoints(run)

        assert store.checkpoints(run, newest=newest) == everything[-newest:]
        if run is None and len({info.run for info in everything}) > 1:
            with pytest.raises(AmbiguousRef):
                store.latest()
            return
        if not everything and store._context.layout.is_filled(run or ""):
            with pytest.raises(NoWholeCheckpoint):
                store.latest(run)
            return
        assert store.latest(run) == (everything[-1] if everything else None)
        if everything:
            assert store.info("latest" if run is None else f"{run}@latest") == everything[-1]


def test_the_others_are_not_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(30):
        store.save(state(step), step)
    looked_at: list[int] = []

    def looking(_layout: object, key: CheckpointKey) -> directories.Verdict:
        looked_at.append(key.step)
        return directories.Verdict(None, "it is torn")

    folder = checkpoint_dir(store.path, "main", 3)
    (folder / "manifest.json").unlink()

    with monkeypatch.context() as patched:
        patched.setattr(directories, "look", looking)
        assert [info.step for info in infos(store._context, newest=5)] == [25, 26, 27, 28, 29]
        assert looked_at == []
        assert len(infos(store._context)) == 29
        assert looked_at == [3]
    shutil.rmtree(folder)


def test_an_old_one_that_the_catalog_does_not_know_takes_no_place_of_a_newer_one(store: Store) -> None:
    for step in range(1, 5):
        store.save(state(step), step)
    old, torn = checkpoint_dir(store.path, "main", 1), checkpoint_dir(store.path, "main", 4)
    shutil.copytree(old, old.with_name("copy"))
    shutil.rmtree(old)
    old.with_name("copy").rename(old)  # another inode number
    (torn / "manifest.json").unlink()

    assert [info.step for info in infos(store._context, newest=2)] == [2, 3]
    shutil.rmtree(torn)


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("when", ["before the catalog is asked", "after it"])
def test_one_that_goes_while_it_is_looked_for_gives_place_to_the_one_before(
    store: Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for step in range(3):
        store.save(state(step), step)
    catalog = store._context.catalog
    real = type(catalog).current

    def with_a_drop(self: Any, *arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        known = real(self, *arguments, **options)
        elsewhere(lambda: Store.open(store.path).delete(2))
        return known if when == "after it" else real(self, *arguments, **options)

    monkeypatch.setattr(type(catalog), "current", with_a_drop)

    latest = store.latest()

    assert latest is not None
    assert latest.step == 1


_MOMENTS = [
    (Catalog, "propose", True, 1),
    (Catalog, "propose", False, 1),
    (OpenRuns, "_stamps", True, 1),
    (OpenRuns, "_stamps", True, 1000),
    (Layout, "subdirectories", False, 1000),
]


@pytest.mark.parametrize("ask", ["latest", "newest"])
@pytest.mark.parametrize("moment", range(len(_MOMENTS)))
def test_one_that_is_replaced_while_it_is_looked_for_gives_place_to_no_older_one(
    store: Store, monkeypatch: pytest.MonkeyPatch, moment: int, ask: str
) -> None:
    kind, name, is_before, few = _MOMENTS[moment]
    for step in range(1, 6):
        store.save({"w": step}, step)
    asked: Any = getattr(kind, name)

    def replacing() -> None:
        other = Store.open(store.path)
        other.load(5)
        other.save({"w": 500}, 5, if_exists="replace")

    def with_a_replacement(*args: Any, **options: Any) -> Any:
        def replace() -> None:
            monkeypatch.setattr(kind, name, asked)
            elsewhere(replacing)

        if is_before:
            replace()
        answer = asked(*args, **options)
        if not is_before:
            replace()
        return answer

    monkeypatch.setattr(facts, "FEW", few)
    monkeypatch.setattr(kind, name, with_a_replacement)
    found = store.latest() if ask == "latest" else store.checkpoints(newest=1)[-1]

    assert found is not None
    assert found.step == 5
    assert store.load(5) == {"w": 500}
    check_store(store.path)


@pytest.mark.parametrize("newest", [0, -1])
def test_a_number_below_one_is_refused(store: Store, newest: int) -> None:
    with pytest.raises(BadInput, match="at least 1"):
        store.checkpoints(newest=newest)


def test_a_run_that_is_not_there_has_none(store: Store) -> None:
    store.save(state(1), 1)

    assert store.checkpoints("other", newest=3) == []
    assert store.latest("other") is None
    with pytest.raises(NoSuchRef, match="no run 'other'"):
        store.info("other@latest")
