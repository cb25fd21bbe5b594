"""A checkpoint of a store with another hash: reported, in no list, never replaced; alone it opens as ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import ckstore
from ckstore import CkstoreWarning, Store
from ckstore.errors import DamagedBlob, NoSuchRef, NoWholeCheckpoint
from ckstore.objects.publish import IfExists
from tests.support.checkpoint_dirs import checkpoint_dir, checkpoint_dirs
from tests.support.look import directory_of

STATE = {"w": b"x" * 9000, "n": 3}
HASHES = ("xxh3_128", "blake3")


@pytest.fixture(params=HASHES)
def mixed(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a store with one checkpoint of its own, main@1, and one that was copied from a store with another hash."""
    (other,) = set(HASHES) - {request.param}
    with Store.init(tmp_path / "other", hash=other) as store:
        store.save(STATE, step=2)
    with Store.init(tmp_path / "store", hash=request.param) as store:
        store.save(STATE, step=1)
    directory = checkpoint_dir(tmp_path / "other", "main", 2)
    shutil.copytree(directory, tmp_path / "store" / directory.relative_to(tmp_path / "other"))
    return tmp_path / "store"


def test_it_is_reported_and_in_no_list(mixed: Path) -> None:
    with Store.open(mixed) as store:
        assert [info.step for info in store.checkpoints()] == [1]
        assert any("another hash" in note and "open_checkpoint" in note for note in store.warnings)
        latest = store.latest(valid=True)
        assert latest is not None
        assert latest.step == 1
        with pytest.raises(NoSuchRef):
            store.load("main@2")


@pytest.mark.filterwarnings("ignore:Rebuilt the catalog")
@pytest.mark.parametrize("how", ["without its catalog", "read-only", "after reindex"])
def test_no_way_of_opening_takes_it(mixed: Path, how: str) -> None:
    if how == "without its catalog":
        (mixed / "catalog.db").unlink()
    with Store.open(mixed, readonly=how == "read-only") as store:
        if how == "after reindex":
            store.reindex(relink=True)

        assert [info.step for info in store.checkpoints()] == [1]
        assert len({name.name.partition("-")[0] for name in (mixed / "blobs").glob("*/*")}) == 1


def test_verify_and_doctor_say_it_and_leave_no_mark(mixed: Path) -> None:
    with Store.open(mixed) as store:
        report = store.verify()
        found = [finding for finding in store.doctor().findings if finding.what == "hash"]

    assert [(damage.name, "another hash" in damage.what) for damage in report.damage] == [("main@2", True)]
    assert report.whole == ("main@1",)
    assert [finding.level for finding in found] == ["warning"]
    assert "main@2" in found[0].found
    assert "open_checkpoint" in found[0].do
    assert not (checkpoint_dir(mixed, "main", 2) / "damaged.json").exists()


@pytest.mark.parametrize("if_exists", ["error", "replace", "keep"])
def test_a_save_at_its_step_neither_replaces_it_nor_relies_on_it(mixed: Path, if_exists: IfExists) -> None:
    foreign = checkpoint_dir(mixed, "main", 2)
    with Store.open(mixed) as store:
        info = store.save(STATE, step=2, if_exists=if_exists)
        store.save(STATE)
        store.gc(now=True)

        assert (info.warnings, info.reused_bytes) == ((), info.logical_bytes)  # of main@1
        assert [info.step for info in store.checkpoints()] == [1, 2, 3]
        assert store.load(2) == STATE

    assert (foreign / "manifest.json").exists()
    assert len(checkpoint_dirs(mixed, "main", 2)) == 2


def test_it_opens_alone(mixed: Path) -> None:
    with ckstore.open_checkpoint(checkpoint_dir(mixed, "main", 2)) as checkpoint:
        assert checkpoint.load() == STATE


def test_a_store_json_of_another_hash_than_its_checkpoints_makes_each_of_them_one(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save(STATE, step=1)
    settings = json.loads((tmp_path / "store/store.json").read_bytes())
    del settings["digest"]
    (tmp_path / "store/store.json").unlink()
    (tmp_path / "store/store.json").write_text(json.dumps({**settings, "hash": "blake3"}))

    with Store.open(tmp_path / "store") as store:
        with pytest.warns(CkstoreWarning, match="another hash"):
            assert store.checkpoints() == []
        with pytest.raises(NoWholeCheckpoint, match="another hash"):
            store.latest()
        with pytest.raises(NoSuchRef):
            store.load(1)
        assert not store.verify().ok


def test_a_manifest_that_mixes_algorithms_is_damaged(tmp_path: Path) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save(STATE, step=1)
        path = directory_of(store, 1) / "manifest.json"
        body = path.read_bytes().partition(b'"manifest":')[2][:-2]
        blob = next((directory_of(store, 1) / "blobs").iterdir()).name.encode()
        body = body.replace(blob, b"blake3-" + b"0" * 64)
        digest = store.settings.algorithm.digest(body).encode()
        path.chmod(0o600)
        path.write_bytes(b'{"digest":"' + digest + b'","manifest":' + body + b"}\n")

    with pytest.raises(DamagedBlob, match="wanted a digest xxh3-"):
        ckstore.open_checkpoint(path.parent)
