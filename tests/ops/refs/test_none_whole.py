"""Where checkpoints exist and none is whole, no way to ask for the newest answers that there is none yet."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, InUse, NoSuchRef, NoWholeCheckpoint, Protected, Store
from ckstore.fs import locks
from ckstore.integrations.directories import checkout_to_resume
from ckstore.objects.staging import Staging
from ckstore.training import restore
from ckstore.training.newest import untried
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414 - a fixture
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.stores import check_store

BASE = np.arange(300_000)
STEPS = (100, 200, 300)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with three checkpoints of one run, of which two tensors are blobs of their own."""
    place = tmp_path / "train"
    with Store.open_or_init(place, run="gpt") as store:
        for step in STEPS:
            store.save({"base": BASE, "w": np.full(300_000, step), "step": step}, step=step, metrics={"loss": 1 / step})
    return place


def unlink_inode(root: Path, inode: int) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.lstat(path).st_ino == inode:
                os.unlink(path)


def lose_one_blob(place: Path) -> None:
    """Lose the file that all checkpoints share, with all of its names."""
    shared = max(place.glob("blobs/*/*"), key=lambda path: path.stat().st_nlink)
    unlink_inode(place, shared.stat().st_ino)


def purge(place: Path) -> None:
    """Remove the blobs, as the purge of a scratch filesystem may that looks at the times of files."""
    for path in [*place.glob("blobs/*/*"), *place.glob("checkpoints/*/*/blobs/*")]:
        path.unlink()


def purge_all(place: Path) -> None:
    """Remove all files of the checkpoints; the directories stay."""
    for path in [*(place / "checkpoints").rglob("*"), *(place / "blobs").rglob("*")]:
        if path.is_file():
            path.unlink()


def lose_manifests(place: Path) -> None:
    for path in place.glob("checkpoints/*/*/manifest.json"):
        path.unlink()


def move_run(place: Path) -> None:
    """Give the directory of the run another name by hand, and ask for that run."""
    (place / "checkpoints/gpt").rename(place / "checkpoints/mine")
    (place / "checkpoints/mine").rename(place / "checkpoints/gpt")
    for folder in (place / "checkpoints/gpt").iterdir():
        folder.rename(folder.with_name(f"1{folder.name}"))


LOSSES = [lose_one_blob, purge, purge_all, lose_manifests, move_run]


def forget(place: Path) -> None:
    for path in place.glob("catalog.db*"):
        path.unlink()


def opened(place: Path, how: str) -> Store:
    """Open a store with another catalog than the one that its saves wrote."""
    if how == "reindexed":
        store = Store.open(place, run="gpt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store.reindex()
        return store
    if how == "elsewhere":
        return Store.open(place, run="gpt", catalog_path=place.with_name("catalog"))
    forget(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Store.open(place, run="gpt", readonly=how == "read-only")


ASKING: dict[str, Callable[[Store, Path], object]] = {
    "latest": lambda store, _: store.latest(),
    "latest of the run": lambda store, _: store.latest("gpt"),
    "latest valid": lambda store, _: store.latest(valid=True),
    "load": lambda store, _: store.load(),
    "load latest-valid": lambda store, _: store.load("gpt@latest-valid"),
    "load_into": lambda store, _: store.load_into({"step": 0}, "latest"),
    "load_into latest-valid": lambda store, _: store.load_into({"step": 0}, "latest-valid"),
    "info": lambda store, _: store.info(),
    "open_checkpoint": lambda store, _: store.open_checkpoint(),
    "checkout": lambda store, folder: store.checkout("latest", folder / "out"),
    "best": lambda store, _: store.best("loss"),
    "tag": lambda store, _: store.tag("best"),
    "restore": lambda store, _: restore(store),
    "untried": lambda store, _: untried(store, "latest-valid", ()),
    "frameworks": lambda store, folder: checkout_to_resume(store, None, "latest-valid", folder),
}


@pytest.mark.crossed
@pytest.mark.filterwarnings("ignore:the catalog:ckstore.CkstoreWarning")
@pytest.mark.parametrize("lose", LOSSES)
@pytest.mark.parametrize("how", ["without its catalog", "reindexed", "read-only", "elsewhere"])
def test_every_way_to_ask_for_the_newest_raises(place: Path, tmp_path: Path, lose: Any, how: str) -> None:
    lose(place)
    with opened(place, how) as store:
        for name, ask in ASKING.items():
            if how == "read-only" and name == "tag":
                continue
            with pytest.raises(
                NoWholeCheckpoint, match=r"no checkpoint of the run 'gpt' is complete. 3 exist"
            ) as caught:
                ask(store, tmp_path)
            assert "ckstore delete --run gpt" in caught.value.hint, name
            assert not isinstance(caught.value, NoSuchRef)
        with pytest.warns(CkstoreWarning, match="checkpoints are incomplete or damaged: gpt@"):
            assert store.checkpoints() == []


def test_the_command_line_says_so_and_exits_with_3(place: Path, run: Run, tmp_path: Path) -> None:
    purge(place)
    forget(place)

    for command in (
        ["log"],
        ["log", "--run", "gpt"],
        ["runs"],
        ["show"],
        ["ls"],
        ["checkout", "latest", tmp_path / "o"],
    ):
        shown = run(*command, "--store", place)
        assert shown.exit_code == 3, command
        assert "is complete. 3 exist: gpt@300: " in shown.stderr
        assert "ckstore verify --repair" in shown.stderr


def test_a_run_without_checkpoints_has_none_beside_one_that_is_torn(place: Path) -> None:
    lose_one_blob(place)
    forget(place)
    store = Store.open(place)

    assert store.latest("other") is None
    with pytest.raises(NoSuchRef):
        store.load("other@latest")
    with pytest.raises(NoWholeCheckpoint):
        store.latest("gpt")


def test_what_a_dead_save_left_was_never_a_checkpoint(tmp_path: Path) -> None:
    with Store.init(tmp_path / "s") as store:
        staging = Staging.create(store._context.layout, "main", 1)
        staging.lock.release()

        assert store.latest() is None
        assert store.checkpoints() == []


def lose_newest(place: Path) -> None:
    folder = checkpoint_dir(place, "gpt", 300)
    max((folder / "blobs").iterdir(), key=lambda path: (-path.stat().st_nlink, path.name)).unlink()
    forget(place)


def test_an_older_one_is_used_with_one_warning_that_names_the_newer(place: Path) -> None:
    lose_newest(place)
    with pytest.warns(CkstoreWarning, match="Rebuilt"):
        store = Store.open(place, run="gpt")

    with pytest.warns(
        CkstoreWarning, match=r"latest is gpt@200, since newer checkpoints are incomplete or damaged: gpt@300: "
    ) as one:
        newest = store.latest()

    assert len(one) == 1
    assert one[0].filename == __file__
    assert newest is not None
    assert newest.step == 200
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.latest() == newest
        assert store.load()["step"] == 200


def test_without_a_manifest_nothing_tells_that_it_is_older(place: Path) -> None:
    (checkpoint_dir(place, "gpt", 100) / "manifest.json").unlink()
    store = Store.open(place, run="gpt")

    with pytest.warns(CkstoreWarning, match=r"latest is gpt@300, .*gpt@100: .*\(so it may be older\)"):
        store.latest()
    with pytest.warns(CkstoreWarning, match="may be older"):
        assert Store.open(place, run="gpt").checkpoints(newest=1)[0].step == 300


def test_an_old_torn_one_is_no_news_for_a_training_that_goes_on(place: Path) -> None:
    lose_one_blob(place)
    forget(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = Store.open(place, run="gpt")

    # A user who decides to go on in the run may save to it.
    info = store.save({"w": np.zeros(10)}, step=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.latest() == info
        assert store.latest(valid=True) == info


@pytest.mark.crossed
@pytest.mark.parametrize("lose", LOSSES)
def test_what_is_left_of_a_run_is_deleted_by_the_command_that_the_error_names(
    place: Path, run: Run, lose: Callable[[Path], None]
) -> None:
    lose(place)
    forget(place)

    assert "gpt@" in run("delete", "--run", "gpt", "--dry-run", "--store", place).stdout
    assert run("log", "--store", place).exit_code == 3
    done = run("delete", "--run", "gpt", "--now", "--store", place)

    assert done.exit_code == 0
    assert done.stdout.count("which is incomplete") == 3
    assert "no checkpoint yet" in run("log", "--store", place).stderr
    with Store.open(place, run="gpt") as store:
        assert store.latest() is None
        assert not os.listdir(place / "trash")
        store.save({"base": BASE}, step=100)
        store.gc(now=True)
    check_store(place)


def test_one_directory_and_a_range_of_them_can_be_deleted(place: Path, run: Run) -> None:
    lose_one_blob(place)
    forget(place)

    assert run("delete", "gpt@100", "--store", place).exit_code == 0
    assert run("delete", "150..250", "--store", place).exit_code == 0
    assert run("delete", "gpt@100", "--store", place).exit_code == 4
    assert sorted(path.name.split(".")[0] for path in (place / "checkpoints/gpt").iterdir()) == ["300"]


def test_what_is_left_stays_while_it_is_open_or_tagged(place: Path) -> None:
    with Store.open(place, run="gpt") as store:
        store.tag("best", 200)
    lose_manifests(place)
    forget(place)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = Store.open(place, run="gpt")

    with pytest.raises(Protected, match="has the tag best"):
        store.delete(200)
    with pytest.raises(Protected, match="has the tag best"):
        store.delete(200, dry_run=True)
    with locks.lock_shared(checkpoint_dir(place, "gpt", 300)), pytest.raises(InUse):
        store.delete(300)
    store.delete(300)

    assert len(os.listdir(place / "checkpoints/gpt")) == 2


def test_transformers_does_not_take_it_for_the_first_start(place: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("ckstore.integrations.transformers")
    purge(place)
    with opened(place, "without its catalog") as store, pytest.raises(NoWholeCheckpoint):
        transformers.directory_to_resume(store, tmp_path, or_none=True)
    shutil.rmtree(place / "checkpoints/gpt")
    with Store.open(place, run="gpt") as store:
        assert transformers.directory_to_resume(store, tmp_path, or_none=True) == (None, ())
