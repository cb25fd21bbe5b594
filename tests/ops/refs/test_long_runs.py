"""In a long run the newest are found by names and the catalog: whatever is done to it meanwhile is seen at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import NoSuchRef
from ckstore.fs.dirfd_stat import OpenDir
from ckstore.ops.index import facts, sequence
from tests.support.catalog_rows import change
from tests.support.checkpoint_dirs import checkpoint_dir, step_of_name
from tests.support.forging import forge_manifest
from tests.support.stores import check_store

COUNT = 12


@pytest.fixture(autouse=True)
def _every_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "FEW", 0)


def state(value: int) -> dict[str, Any]:
    return {"w": np.full(10, value, dtype=np.int32)}


@pytest.fixture
def full(store: Store) -> Store:
    """A store with a run of twelve and a run of one."""
    store.save(state(0), 0, "side")
    for step in range(COUNT):
        store.save(state(step), step, metrics={"loss": step})
    return store


def by_another(store: Store, *lines: str) -> None:
    """Let another process do something with the store."""
    code = "import sys, numpy; from ckstore import Store\nwith Store(sys.argv[1]) as store:\n    "
    words = [sys.executable, "-W", "ignore", "-c", code + "\n    ".join(lines), str(store.path)]
    subprocess.run(words, check=True, timeout=60)


def folder(store: Store, step: int) -> Path:
    return checkpoint_dir(store.path, "main", step)


def added_by_another(store: Store) -> list[int]:
    by_another(store, "store.save({'w': numpy.ones(3)}, 50, 'main')")
    return [*range(COUNT), 50]


def dropped_by_another(store: Store) -> list[int]:
    by_another(store, "store.delete('main@11')", "store.delete('main@3')")
    return [0, 1, 2, *range(4, 11)]


def replaced_by_another(store: Store) -> list[int]:
    by_another(store, "store.save({'w': numpy.ones(3)}, 4, 'main', if_exists='replace', parent=4)")
    return [0, 1, 2, 3, *range(5, COUNT), 4]


def removed_by_hand(store: Store) -> list[int]:
    shutil.rmtree(folder(store, 11))
    shutil.rmtree(folder(store, 2))
    return [0, 1, *range(3, 11)]


def copied_by_hand(store: Store) -> list[int]:
    place, kept = folder(store, 11), store.path.parent / "kept"
    shutil.copytree(place, kept, copy_function=shutil.copy2)
    store.delete("main@11")
    store.gc()
    shutil.copytree(kept, place)
    return [*range(COUNT)]


def exchanged_by_hand(store: Store) -> list[int]:
    place = folder(store, 11)
    place.rename(store.path.parent / "away")
    shutil.copytree(store.path.parent / "away", place)
    shutil.rmtree(store.path.parent / "away")
    return [*range(COUNT)]


def torn(store: Store) -> list[int]:
    (folder(store, 11) / "manifest.json").unlink()
    return [*range(11)]


def catalog_lost(store: Store) -> list[int]:
    for path in store.path.glob("catalog.db*"):
        path.unlink()
    return [*range(COUNT)]


def older_catalog(store: Store) -> list[int]:
    kept = store.path.parent / "catalog.db"
    shutil.copy2(store.path / "catalog.db", kept)
    store.save(state(90), 90)
    store.delete("main@5")
    shutil.copy2(kept, store.path / "catalog.db")
    return [*range(5), *range(6, COUNT), 90]


TROUBLES = [
    added_by_another,
    dropped_by_another,
    replaced_by_another,
    removed_by_hand,
    copied_by_hand,
    exchanged_by_hand,
    torn,
    catalog_lost,
    older_catalog,
]


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.crossed
@pytest.mark.parametrize("how", ["same handle", "opened again", "for reading"])
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)
def test_what_is_there_is_said_at_once(full: Store, trouble: Callable[[Store], list[int]], how: str) -> None:
    steps = trouble(full)
    store = full if how == "same handle" else Store.open(full.path, readonly=how == "for reading")

    latest = store.latest("main")
    assert latest is not None
    assert latest.step == store.info("main@latest").step == steps[-1]
    assert [info.step for info in store.checkpoints("main", newest=4)] == steps[-4:]
    (main,) = [run for run in store.runs() if run.name == "main"]
    assert (main.checkpoint_count, main.newest.step, main.highest_step) == (len(steps), steps[-1], max(steps))
    assert [info.step for info in store.checkpoints("main")] == steps
    if how != "for reading":
        info = store.save(state(100), run="main")
        assert info.step == max(*steps, 11 if trouble is torn else 0) + 1
        assert info.sequence > latest.sequence
        assert store.info("main@latest").step == info.step
    if trouble is torn:
        shutil.rmtree(folder(full, 11))


def test_the_others_are_not_looked_into(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look_into = OpenDir.look_into

    def watched(self: OpenDir, directories: Any, name: str, *rest: Any, **options: Any) -> Any:
        names = [*directories]
        looked.extend(names if name != "damaged.json" else ())  # a save looks for marks of damage in all of them
        return look_into(self, names, name, *rest, **options)

    monkeypatch.setattr(OpenDir, "look_into", watched)
    monkeypatch.setattr(sequence, "_MANY", 5)

    assert full.info("main@latest").step == 11
    assert [info.step for info in full.checkpoints("main", newest=2)] == [10, 11]
    assert [run.name for run in full.runs()] == ["side", "main"]
    with Store.open(full.path) as opened:
        opened.save(state(12), 12)
        opened.save(state(13), 13)
    assert {step_of_name(name) for name in looked} <= {0, 10, 11, 12, 13}


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("column, value", [("sequence", 1), ("sequence", 2**40), ("manifest_mtime_ns", 5)])
@pytest.mark.parametrize("step", [3, 11])
def test_a_wrong_row_makes_no_other_one_the_newest(
    full: Store, step: int, column: str, value: int, *, forged: bool
) -> None:
    change(full.path, "checkpoints", column, value, where=f"run = 'main' AND step = {step}", forged=forged)

    with Store.open(full.path, readonly=True) as reader:
        assert reader.info("main@latest").step == 11
        assert [info.step for info in reader.checkpoints("main", newest=1)] == [11] or forged


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "with its name"])
def test_a_newest_whose_manifest_was_changed_is_looked_at(full: Store, *, in_place: bool) -> None:
    forge_manifest(folder(full, 11), sequence=2, in_place=in_place)

    assert full.info("main@latest").step == 10
    assert [info.step for info in full.checkpoints("main", newest=2)] == [9, 10]
    with Store.open(full.path) as opened:
        assert opened.info("main@latest").step == 10
        assert opened.save(state(12), 12, "main").sequence == 13
    if in_place:  # then it is no checkpoint
        shutil.rmtree(folder(full, 11))


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("is_torn", [True, False], ids=["torn", "changed"])
def test_a_save_is_the_newest_if_the_former_newest_was_damaged_after_the_opening(
    full: Store, monkeypatch: pytest.MonkeyPatch, *, is_torn: bool
) -> None:
    monkeypatch.setattr(sequence, "_MANY", 5)
    with Store.open(full.path) as opened:  # the opening finds every row right
        if is_torn:
            (folder(full, 11) / "manifest.json").unlink()
        else:
            forge_manifest(folder(full, 11), sequence=2, in_place=True)
        assert opened.save(state(12), 12, "main").sequence == full.info("main@10").sequence + 1
        assert opened.info("main@latest").step == 12
        shutil.rmtree(folder(full, 11))
        opened.gc()
    check_store(full.path)


def test_a_whole_id_is_found_without_a_look_at_the_others(full: Store) -> None:
    wanted = full.info("main@5")

    assert full.info(wanted.id) == wanted
    assert full.info(f"main@{wanted.id}") == wanted
    with pytest.raises(NoSuchRef):
        full.info(f"side@{wanted.id}")
    by_another(full, "store.delete('main@5')")
    with pytest.raises(NoSuchRef):
        full.info(wanted.id)
