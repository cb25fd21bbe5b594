"""Evicted checkpoints whose data a remote lost are marked as damaged, so that nothing relies on them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore import BadInput, BytesElsewhere, CkstoreWarning, NoSuchRemote, RemoteError, RetentionPolicy, Store
from ckstore.ops.refs.find import open_directory
from ckstore.remote import keys
from ckstore.remote.service.remote_entries import open_objects
from ckstore.store import context_of
from tests.remote.test_keep import mirrored
from tests.remote.test_listing import later
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a remote."""
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add("cold", tmp_path / "cold")
        yield store


def lose(store: Store, name: str, *steps: int) -> None:
    """Delete the blobs of checkpoints from a remote, and leave its other objects."""
    objects = open_objects(store.remotes.get(name).target)
    lost: set[str] = set()
    for step in steps:
        with open_directory(context_of(store), step) as directory:
            lost |= {blob.digest for blob in directory.manifest.blobs}
    objects.delete([one.key for one in objects.list("blobs/") if any(digest in one.key for digest in lost)])


def test_an_evicted_checkpoint_that_the_remote_lost_does_not_count_as_valid(store: Store) -> None:
    for step in (1, 2, 3):
        store.save(state(step), step=step, metrics={"loss": 1.0 / step})
    store.push(all=True, remote="cold")
    store.evict([2, 3], "cold")
    lose(store, "cold", 2, 3)

    with pytest.warns(CkstoreWarning, match="latest-valid is main@1, since newer checkpoints are damaged: main@3"):
        assert same(store.load("latest-valid"), state(1))
    assert not store.verify().ok

    assert [info.damaged for info in store.checkpoints()] == [False, True, True]
    assert store.info("best:loss").step == 1
    report = store.prune(RetentionPolicy(keep_last=1), now=True).retention
    assert report is not None
    assert list(report.plan.dropped) == []
    assert same(store.load(1), state(1))
    store.save(state(20), step=2)  # a damaged checkpoint does not occupy its step
    assert same(store.load(2), state(20))


def test_a_lost_checkpoint_counts_as_valid_again_when_the_remote_has_it_back(store: Store, tmp_path: Path) -> None:
    store.save(state(1), step=1)
    store.push(all=True, remote="cold")
    address = store.remotes.get("cold").target.address
    shutil.copytree(store.path, tmp_path / "copy", symlinks=True)
    store.evict(1, "cold")
    lose(store, "cold", 1)
    assert not store.verify().ok
    assert store.info(1).damaged
    with Store.open(tmp_path / "copy") as copy:
        assert copy.remotes.get("cold").target.address == address
        copy.push(all=True, remote="cold")

    assert store.verify().ok

    assert not store.info(1).damaged
    assert same(store.load("latest-valid"), state(1))
    check_store(store.path)


def test_the_mirror_process_marks_what_the_mirror_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.config.mirror = "cold"
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    store.evict(1, "cold")
    lose(store, "cold", 1)
    later(monkeypatch)

    mirrored(store)

    assert [info.damaged for info in store.checkpoints()] == [True, False]


def test_the_status_does_not_count_on_a_mirror_that_lost_its_description(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.config.mirror = "cold"
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    store.evict(1, "cold")
    (tmp_path / "cold" / keys.INFO).unlink()
    later(monkeypatch)

    mirrored(store)

    status = store.mirror_status()
    assert status is not None
    assert (status.missing, [info.step for info in status.behind], status.ok) == (("main@1",), [2], False)
    with pytest.raises(NoSuchRemote):
        Store.clone(tmp_path / "cold", tmp_path / "clone")
    assert not store.info(1).damaged
    store.remotes.add("cold", tmp_path / "cold")
    mirrored(store)
    status = store.mirror_status()
    assert status is not None
    assert (status.missing, status.behind) == ((), ())
    assert same(store.load(1), state(1))
    with Store.clone(tmp_path / "cold", tmp_path / "clone") as clone:
        assert same(clone.load(2), state(2))


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_remote_that_lost_only_its_description_is_added_again_as_the_same(
    store: Store, tmp_path: Path, is_removed: bool
) -> None:
    for step in (1, 2):
        store.save(state(step), step=step)
    store.push(all=True, remote="cold")
    store.evict(1, "cold")
    uuid = store.remotes.get("cold").uuid
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.remotes.add("shared", tmp_path / "cold")
    other.save(state(5), step=5)
    other.push(5)
    other.evict(5)
    (tmp_path / "cold" / keys.INFO).write_bytes(b"")
    with pytest.raises(RemoteError, match=r"remote\.json of cold") as raised:
        store.remotes.add("cold", tmp_path / "cold")
    assert "delete remote.json there" in str(raised.value.hint)
    (tmp_path / "cold" / keys.INFO).unlink()
    if is_removed:
        with pytest.warns(CkstoreWarning, match="1 checkpoint"):
            store.remotes.remove("cold")

    store.remotes.add("cold", tmp_path / "cold")

    assert store.remotes.get("cold").uuid == uuid
    assert store.verify().ok
    assert same(store.load(1), state(1))
    assert same(other.load(5), state(5))
    store.pull(1)
    check_store(store.path)


def test_a_store_does_not_describe_a_remote_on_which_another_store_relies(store: Store, tmp_path: Path) -> None:
    store.save(state(1), step=1)
    store.push(all=True, remote="cold")
    store.evict(1, "cold")
    with Store.init(tmp_path / "other", chunk_bytes=MIB) as other:
        other.remotes.add("shared", tmp_path / "cold")
        (tmp_path / "cold" / keys.INFO).unlink()

        with pytest.raises(NoSuchRemote, match=r"remote\.json is missing") as raised:
            other.remotes.add("shared", tmp_path / "cold")
        assert str(store.path) in raised.value.message
        assert "ckstore remote add" in str(raised.value.hint)
        with pytest.raises(NoSuchRemote, match=r"remote\.json is missing"):
            Store.open_or_init(tmp_path / "new", mirror=tmp_path / "cold")
        assert not (tmp_path / "new").exists()
        store.remotes.add("cold", tmp_path / "cold")

        assert other.pull(1, "shared").new
    assert same(store.load(1), state(1))
    check_store(store.path)


def test_a_clone_adds_its_remote_again_as_the_same(store: Store, tmp_path: Path) -> None:
    store.save(state(1), step=1)
    store.push(all=True, remote="cold")
    with Store.clone(tmp_path / "cold", tmp_path / "clone") as clone:
        (tmp_path / "cold" / keys.INFO).unlink()
        (name,) = (entry.name for entry in clone.remotes)
        with pytest.warns(CkstoreWarning, match="1 checkpoint"):
            clone.remotes.remove(name)

        clone.remotes.add("found", tmp_path / "cold")
        clone.remotes.add(name, tmp_path / "cold")

        assert clone.verify().ok
        assert same(clone.load(1), state(1))
    store.push(all=True, remote="cold")


def test_a_remote_without_description_gets_none_with_another_hash(store: Store, tmp_path: Path) -> None:
    store.save(state(1), step=1)
    store.push(all=True, remote="cold")
    (tmp_path / "cold" / keys.INFO).unlink()
    with Store.init(tmp_path / "other", hash="blake3") as other, pytest.raises(BadInput, match="blake3"):
        other.remotes.add("shared", tmp_path / "cold")
    assert not (tmp_path / "cold" / keys.INFO).exists()


def test_an_unmounted_remote_leaves_evicted_checkpoints_unmarked(store: Store, tmp_path: Path) -> None:
    store.remotes.add("disk", tmp_path / "disk")
    store.save(state(1), step=1)
    store.push(all=True, remote="disk")
    store.evict(1, "disk")
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk").mkdir()

    assert not store.verify().ok
    with pytest.raises(BytesElsewhere):
        store.load("latest-valid")

    assert not store.info(1).damaged
    (tmp_path / "disk").rmdir()
    (tmp_path / "away").rename(tmp_path / "disk")
    assert same(store.load(1), state(1))


def test_a_clone_of_a_store_reports_data_that_the_store_has_evicted(store: Store, tmp_path: Path) -> None:
    store.save(state(1), step=1)
    store.push(all=True, remote="cold")
    with Store.clone(store.path, tmp_path / "clone") as clone:
        assert clone.verify().ok
        store.evict(1, "cold")

        (away,) = clone.verify().elsewhere

        assert away.missing == "origin: it was evicted there"
        store.pull(1, remote="cold")
        assert clone.verify().ok
        assert same(clone.load("latest-valid"), state(1))


def test_gc_keeps_cached_data_that_the_remote_lost_and_a_save_heals_the_checkpoint(store: Store) -> None:
    for step in (1, 2):
        store.save(state(step), step=step)
    store.push(all=True, remote="cold")
    store.evict([1, 2], "cold")
    assert same(store.load(1), state(1))  # this fills the cache
    assert same(store.load(2), state(2))
    lose(store, "cold", 1)
    assert not store.verify().ok

    store.gc()

    found = store.load(1)
    assert same(found, state(1))
    store.save(found, step=3)
    assert [info.damaged for info in store.checkpoints()] == [False, False, False]
    assert not store.info(1).elsewhere
    assert same(store.load(1), state(1))
    assert store.verify().ok
    check_store(store.path)
