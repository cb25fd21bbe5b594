"""What the store says of a checkpoint is the same, however it was asked; a place that is not durable is said once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from ckstore import CheckpointInfo, CkstoreWarning, RetentionPolicy, Store, open_checkpoint
from ckstore.background import BackgroundSaves
from ckstore.fs.host import own_folders
from ckstore.model.doctor.place import PlaceFacts
from ckstore.ops import notices
from ckstore.ops.index import catalog_place
from ckstore.ops.open import opening
from ckstore.ops.read import open_checkpoint as opened
from tests.support.look import directory_of
from tests.support.plans import plan_of


def facts(kind: str) -> object:
    return lambda path: PlaceFacts(path=str(path), kind=kind, journal=kind == "ext4")


@pytest.fixture(params=["tmpfs", "ext4"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = str(request.param)
    monkeypatch.setattr(notices, "_warned_not_durable", set())
    for module in (opening, catalog_place, opened):
        monkeypatch.setattr(module, "examine", facts(kind))
    return kind


def state() -> dict[str, object]:
    return {"w": np.arange(5)}


def test_a_path_that_is_not_utf_8_is_warned_of_as_others_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_warned_not_durable", set())
    reason = f"{os.fsdecode(b'/data/' + bytes([255]))} is on tmpfs, and is gone after a restart"

    with pytest.warns(CkstoreWarning, match="a power cut may lose checkpoints in this store: /data/"):
        notices.tell_not_durable(reason, store._context.settings)


def test_an_info_that_is_asked_about_again_says_what_became_of_the_checkpoint(store: Store) -> None:
    saved = store.save(state(), 1)
    blob = next((directory_of(store, saved) / "blobs").iterdir())
    blob.chmod(0o600)
    blob.write_bytes(bytes(blob.stat().st_size))
    assert not store.verify().ok

    again = store.info(saved)

    assert again.damaged
    assert again == store.info(1)
    store.save(state(), 2)  # which heals it
    assert not store.info(again).damaged


@pytest.mark.filterwarnings("ignore:a power cut may lose")
def test_every_way_to_get_an_info_gives_the_same(kind: str, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    saved = store.save(state(), 1, tags=["best"], metrics={"loss": 2})
    assert saved == store.info(1)
    noted = store.annotate(1, {"acc": 0.5}, "looked at")
    again = store.save(state(), 1, tags=["best", "paper"])  # the same content: what is there is returned
    store.untag("paper")

    reopened = Store.open(store.path, readonly=True)
    found: dict[str, CheckpointInfo | None] = {}
    for name, handle in (("the same", store), ("another", reopened)):
        with handle.open_checkpoint("best") as checkpoint:
            found[f"open_checkpoint, {name}"] = checkpoint.info
        found |= {
            f"info, {name}": handle.info(1),
            f"latest, {name}": handle.latest(),
            f"latest valid, {name}": handle.latest(valid=True),
            f"checkpoints, {name}": handle.checkpoints()[0],
            f"newest, {name}": handle.checkpoints(newest=1)[0],
            f"load_into, {name}": handle.load_into(state(), "latest").info,
            f"load_into latest-valid, {name}": handle.load_into(state(), "latest-valid").info,
            f"plan, {name}": plan_of(handle, RetentionPolicy(keep_last=1)).entries[0].info,
        }
    wanted = store.info("best")
    assert {name: info for name, info in found.items() if info != wanted} == {}
    assert wanted.durable is (kind == "ext4")
    assert (wanted.tags, wanted.metrics, wanted.notes) == (("best",), {"loss": 2, "acc": 0.5}, noted.notes)
    assert again.tags == ("best", "paper")
    assert (noted.durable, noted.tags, again.notes) == (wanted.durable, ("best",), wanted.notes)

    with open_checkpoint(directory_of(store, 1)) as alone:  # which knows no store, and so no tags
        assert (alone.info.durable, alone.info.notes) == (wanted.durable, wanted.notes)


def test_a_place_that_is_not_durable_is_warned_of_before_the_first_save(kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CkstoreWarning)
        store = Store.init(tmp_path / "s")
        assert caught == []
        store.save(state(), 1)
        store.save(state(), 2)
        Store.open(store.path).save(state(), 3)
        Store.open(store.path).commit(__file__)
    told = [str(warning.message) for warning in caught]
    assert len(told) == (kind == "tmpfs")
    assert all(text.startswith("a power cut may lose checkpoints in this store: ") for text in told)
    assert all(warning.filename == __file__ for warning in caught)


@pytest.mark.parametrize("kind", ["tmpfs"], indirect=True)
def test_a_training_that_saves_in_the_background_alone_is_warned_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackgroundSaves, "_submit", lambda *_, **__: None)  # what the saver says no one hears
    store = Store.init(tmp_path / "s")
    with pytest.warns(CkstoreWarning, match="a power cut may lose") as caught:
        store.save_async(state(), 1)
    assert caught[0].filename == __file__
    store.save_async(state(), 2)  # once: another warning would be an error


PROGRAM = """
import sys
from ckstore import Store
from ckstore.model.doctor.place import PlaceFacts
from ckstore.ops.open import opening
opening.examine = lambda path: PlaceFacts(path=str(path), kind="tmpfs")
store = Store.open_or_init(sys.argv[1])
for step in range(3):
    store.save({"x": 1.0}, step)
    Store.open(sys.argv[1]).save({"x": 1.0}, step + 100)
"""


def _shown(store: Path) -> int:
    """Return how often a new process that saves into a store warns."""
    command = [sys.executable, "-c", PROGRAM, str(store)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stderr.count("CkstoreWarning: a power cut may lose checkpoints in this store")


def test_python_really_shows_it_once_for_each_store_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONWARNINGS")

    assert [_shown(tmp_path / "s"), _shown(tmp_path / "s")] == [1, 0]
    shutil.copytree(tmp_path / "s", tmp_path / "copy", symlinks=True)
    assert [_shown(tmp_path / "copy"), _shown(tmp_path / "other"), _shown(tmp_path / "s")] == [1, 1, 0]


@pytest.mark.parametrize("kind", ["tmpfs"], indirect=True)
@pytest.mark.parametrize("wrong", ["a file in its place", "no cache", "unreadable"])
def test_a_cache_that_cannot_be_used_costs_only_another_warning(
    kind: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if wrong == "no cache":
        monkeypatch.setattr(own_folders, "cache_folder", lambda: None)
    elif wrong == "unreadable":
        monkeypatch.setattr(own_folders, "make_private", lambda _: os.stat(tmp_path / "no"))
    else:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "ckstore").write_text("")
    store = Store.init(tmp_path / "s")

    for _ in range(2):
        notices._warned_not_durable.clear()
        with pytest.warns(CkstoreWarning, match="a power cut may lose"):
            store.save(state())
