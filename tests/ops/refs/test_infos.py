"""What the store says of a checkpoint is the same, however it was asked; a place that is not durable is said once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from ckstore import CheckpointInfo, CkstoreWarning, RetentionPolicy, Store, open_checkpoint
from ckstore.model.doctor.place import PlaceFacts
from ckstore.ops import context
from ckstore.ops.index import catalog_place
from ckstore.ops.open import opening
from ckstore.ops.read import open_checkpoint as opened


def facts(kind: str) -> object:
    return lambda path: PlaceFacts(path=str(path), kind=kind, journal=kind == "ext4")


@pytest.fixture(params=["tmpfs", "ext4"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    kind = str(request.param)
    monkeypatch.setattr(context, "_told_not_durable", set())
    for module in (opening, catalog_place, opened):
        monkeypatch.setattr(module, "examine", facts(kind))
    return kind


def state() -> dict[str, object]:
    return {"w": np.arange(5)}


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
            f"plan, {name}": handle.plan_retention(RetentionPolicy(keep_last=1)).entries[0].info,
        }
    wanted = store.info("best")
    assert {name: info for name, info in found.items() if info != wanted} == {}
    assert wanted.durable is (kind == "ext4")
    assert (wanted.tags, wanted.metrics, wanted.notes) == (("best",), {"loss": 2, "acc": 0.5}, noted.notes)
    assert again.tags == ("best", "paper")
    assert (noted.durable, noted.tags, again.notes) == (wanted.durable, ("best",), wanted.notes)

    with open_checkpoint(store.directory_of(1)) as alone:  # which knows no store, and so no tags
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
    assert all(text.startswith("a power cut may lose what is saved here: ") for text in told)
    assert all(warning.filename == __file__ for warning in caught)


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


def test_python_really_shows_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONWARNINGS")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "s"], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stderr.count("a power cut may lose what is saved here") == 1
    assert "CkstoreWarning" in done.stderr
