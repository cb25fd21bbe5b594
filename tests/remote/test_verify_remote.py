"""`Remotes.verify` reads the objects of a remote back, and names each one that is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore import BadInput, NoSuchRef, NoSuchRemote, RemoteError, RetentionPolicy, Store
from ckstore.model.seal import seal
from ckstore.remote import keys, transfer
from ckstore.remote.documents.condemned_names import read_condemned
from ckstore.remote.record import read_record
from ckstore.store import context_of
from tests.remote.double import Double, new_remote
from tests.remote.test_listing import all_steps, own_blobs
from tests.remote.test_push import MIB, state
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


def pushed(path: Path, steps: int = 3) -> tuple[Store, Double, str]:
    """Return a store whose checkpoints are also on a remote."""
    store = Store.init(path / "store", chunk_bytes=MIB)
    objects, name = new_remote(store.settings)
    store.remotes.add(name, path / "place")  # the name leads to the double
    objects.held[keys.INFO] = (path / "place" / keys.INFO).read_bytes()
    for step in range(1, steps + 1):
        store.save(state(step), step=step)
    store.push(all=True, remote=name)
    objects.forget_requests()
    return store, objects, name


@pytest.fixture
def there(tmp_path: Path) -> tuple[Store, Double, str]:
    return pushed(tmp_path)


def blob_keys(objects: Double) -> list[str]:
    return sorted(key for key in objects.held if key.startswith(keys.BLOBS))


def flip(objects: Double, key: str) -> None:
    data = bytearray(objects.held[key])
    data[len(data) // 2] ^= 1
    objects.held[key] = bytes(data)


def test_every_blob_of_an_intact_remote_is_read_once(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    report = store.remotes.verify(name)
    assert report.ok
    assert not report.damage
    assert (report.checkpoint_count, report.mode) == (3, "full")
    assert report.read_count == report.blob_count == len(blob_keys(objects))
    assert report.checked_bytes == report.blob_bytes == sum(len(objects.held[key]) for key in blob_keys(objects))
    assert sorted(key for key in objects.keys_read if key.startswith(keys.BLOBS)) == blob_keys(objects)
    assert not objects.keys_written
    assert f"3 checkpoints at {name}" in str(report)
    assert str(report).endswith("no damage")
    check_store(store.path)


@pytest.mark.parametrize("quick", [False, True])
def test_each_changed_object_is_found(tmp_path_factory: pytest.TempPathFactory, quick: bool) -> None:
    store, objects, name = pushed(tmp_path_factory.mktemp("law"))
    intact = dict(objects.held)
    manifests = sorted(key for key in intact if key.startswith(keys.CHECKPOINTS))

    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        objects.held = dict(intact)
        hurt = data.draw(st.sets(st.sampled_from([*blob_keys(objects), *manifests]), max_size=4))
        expected = set()
        for key in sorted(hurt):
            change = data.draw(st.sampled_from(["flip", "cut", "delete"]))
            is_blob = key.startswith(keys.BLOBS)
            if change == "flip":
                flip(objects, key)
            elif change == "cut":
                objects.held[key] = objects.held[key][:-1]
            else:
                del objects.held[key]
            if not (is_blob and quick and change == "flip"):
                expected.add(key)
        report = store.remotes.verify(name, quick=quick)
        lost = {key for key in hurt if key not in objects.held and not key.startswith(keys.BLOBS)}
        unreadable = {key for key in expected if not key.startswith(keys.BLOBS)}
        # The blobs of a checkpoint whose manifest is unreadable are unknown, unless another one needs them.
        assert {one.key for one in report.damage} - expected == set()
        assert unreadable - {one.key for one in report.damage} == set()
        if not unreadable:
            assert {one.key for one in report.damage} == expected
        assert report.ok == (not report.damage)
        assert {one.word for one in report.damage if one.key in lost} <= {"missing"}
        for one in report.damage:
            assert one.checkpoints
            assert one.do
            assert one.what in str(report)

    law()
    check_store(store.path)


def test_a_sample_reads_first_what_was_never_read_back(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    count = len(blob_keys(objects))
    first = store.remotes.verify(name, sample=1 / count)
    assert (first.mode, first.read_count) == ("sampled", 1)
    for _ in range(count - 1):
        assert store.remotes.verify(name, sample=1 / count).read_count == 1
    read = [key for key in objects.keys_read if key.startswith(keys.BLOBS)]
    assert sorted(read) == blob_keys(objects)
    assert f"(1 of {count} blobs)" in str(first)


def test_a_budget_reads_at_least_one_blob(there: tuple[Store, Double, str]) -> None:
    store, _, name = there
    report = store.remotes.verify(name, budget_s=1e-9)
    assert report.read_count >= 1
    assert report.read_count == report.blob_count or not report.in_time


def test_one_checkpoint_is_verified_by_a_ref_to_the_remote(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    report = store.remotes.verify(name, 2)
    assert report.checkpoint_count == 1
    assert report.read_count < len(blob_keys(objects))
    store.delete(3)
    assert store.remotes.verify(name, "latest").ok  # the remote still has it
    with pytest.raises(NoSuchRef):
        store.remotes.verify(name, 9)


def test_a_damaged_blob_is_read_back_again_before_an_eviction(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    only = blob_keys(objects)
    store.remotes.verify(name)
    for key in only:
        flip(objects, key)
    report = store.remotes.verify(name)
    assert len(report.damage) == len(only)
    assert {seen.how for seen in read_record(context_of(store).layout, name).blobs.values()} == {"damaged"}
    evicted = store.evict(1, name)
    assert not evicted.evicted
    assert store.load(1)


def test_what_only_the_remote_had_is_missing_and_a_deleted_checkpoint_is_not(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    store.evict(1, name)
    evicted, pushed_by_hand = store.info(1).id, store.info(2).id
    for key in [key for key in objects.held if evicted in key and key.startswith(keys.CHECKPOINTS)]:
        del objects.held[key]
    report = store.remotes.verify(name)
    assert [(one.word, one.checkpoints) for one in report.damage] == [("missing", ("main@1",))]
    assert "only copy" in report.damage[0].what
    for key in [key for key in objects.held if pushed_by_hand in key and key.startswith(keys.CHECKPOINTS)]:
        del objects.held[key]
    assert {one.checkpoints for one in store.remotes.verify(name).damage} == {("main@1",), ("main@2",)}


def test_the_mirror_pushes_what_a_verification_misses(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    store.config.mirror = name
    store.config.keep_remote = RetentionPolicy(keep_last=2)
    store.save(state(4), step=4)
    all_steps(store)
    assert store.remotes.verify(name).ok  # although `keep_remote` removed checkpoints
    lost = next(key for key in reversed(objects.keys_written) if key.startswith(keys.BLOBS))  # of the newest
    del objects.held[lost]
    report = store.remotes.verify(name)
    assert [one.key for one in report.damage] == [lost]
    all_steps(store)
    assert store.remotes.verify(name).ok
    assert lost in objects.held


@pytest.mark.parametrize("by", ["the same", "another that shares it", "a new one that shares it", "the mirror"])
def test_what_a_verification_finds_damaged_is_sent_again(
    there: tuple[Store, Double, str], tmp_path: Path, by: str
) -> None:
    store, objects, name = there
    if by == "the mirror":
        store.config.mirror = name
        all_steps(store)
    (key, *_) = sorted(own_blobs(store, objects, 2))
    right = objects.held[key]
    flip(objects, key)

    # No verification has read it, and its size is right.
    assert store.push(2, name).moved_count == 0
    (damage,) = store.remotes.verify(name).damage
    assert (damage.word, damage.key, damage.do) == ("damaged", key, "push that checkpoint again from this store")

    if by == "the same":
        assert store.push(2, name, dry_run=True).moved_count == 1
        store.push(2, name)
    elif by == "another that shares it":
        store.save({**state(2), "more": 1}, step=20)
        store.push(20, name)
    elif by == "a new one that shares it":  # as a mirror pushes it, which looks less
        info = store.save({**state(2), "more": 1}, step=20)
        transfer.push(context_of(store), [info], name, {}, lacks_all=True)
    else:
        all_steps(store)
    assert objects.held[key] == right
    assert store.remotes.verify(name).ok
    assert store.push(2, name).moved_count == 0
    assert store.evict(2, name).evicted != ()
    check_store(store.path)


def test_encoded_blobs_and_numbered_names_are_read(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    store, objects, name = pushed(tmp_path, steps=0)
    store.config.push_deltas = True
    changed = state(1)
    for step in (1, 2, 3):
        changed = {**changed, "step": step, "big": changed["big"].copy()}  # type: ignore[attr-defined]
        changed["big"][step] ^= 1  # type: ignore[index]
        store.save(changed, step=step)
        store.push(step, name)
    encoded = store.remotes.verify(name)
    assert encoded.ok
    assert encoded.blob_bytes < 3 * 3 * MIB
    retired = read_condemned(objects)
    retired.retired_names = {one.digest: 1 for key in blob_keys(objects) if (one := keys.blob_in(key))}
    objects.held[keys.CONDEMNED] = seal(retired.render())
    for key in blob_keys(objects):
        objects.put(f"{key}.1", objects.held.pop(key))  # as after a deletion that was slow and a push
    objects.forget_requests()
    assert store.remotes.verify(name).ok
    assert {key for key in objects.keys_read if key.startswith(keys.BLOBS)} == {*blob_keys(objects)}
    for key in blob_keys(objects):
        flip(objects, key)
    assert {one.key for one in store.remotes.verify(name).damage} == {*blob_keys(objects)}


def test_what_another_store_deletes_meanwhile_is_no_damage(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    own = own_blobs(store, objects, 1)
    gone = store.info(1).id

    def fault(call: str, key: str) -> None:
        if call == "read" and key in own:
            for held in own + [held for held in [*objects.held] if gone in held and held.startswith(keys.CHECKPOINTS)]:
                objects.held.pop(held, None)

    objects.fault = fault
    report = store.remotes.verify(name)
    assert report.ok, str(report)


def test_an_emptied_folder_of_blobs_costs_few_requests(tmp_path: Path) -> None:
    store, objects, name = pushed(tmp_path, steps=30)
    lost = blob_keys(objects)
    for key in lost:
        del objects.held[key]
    objects.forget_requests()
    report = store.remotes.verify(name)
    assert {one.key for one in report.damage} == {*lost}
    assert objects.request_count() < 3 * 30 + 20


def test_a_blob_that_gets_another_name_meanwhile_is_not_missing(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    moved = blob_keys(objects)

    def fault(call: str, key: str) -> None:
        while call == "read" and key in moved:
            old = moved.pop()
            objects.put(f"{old}.1", objects.held.pop(old))

    objects.fault = fault
    report = store.remotes.verify(name)
    assert report.ok, str(report)
    assert report.read_count == report.blob_count


def test_a_place_without_a_remote_is_an_error_and_not_an_empty_remote(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    objects.held.clear()
    with pytest.raises(NoSuchRemote):
        store.remotes.verify(name)


def test_a_remote_that_does_not_answer_is_an_error_and_not_damage(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    objects.fault = lambda call, key: "fail" if call == "read" and key.startswith(keys.BLOBS) else None
    with pytest.raises(RemoteError, match="503"):
        store.remotes.verify(name)


def test_options_that_exclude_each_other_are_refused(there: tuple[Store, Double, str], tmp_path: Path) -> None:
    store, _, name = there
    with pytest.raises(BadInput):
        store.remotes.verify(name, quick=True, sample=0.5)
    with pytest.raises(BadInput):
        store.remotes.verify(name, sample=2)
    other = Store.init(tmp_path / "other")
    store.remotes.add("other", other.path)
    with pytest.raises(BadInput, match="store"):
        store.remotes.verify("other")


def test_a_store_that_is_open_for_reading_verifies_its_remote(there: tuple[Store, Double, str]) -> None:
    store, objects, name = there
    flip(objects, blob_keys(objects)[0])
    report = Store.open(store.path, readonly=True).remotes.verify(name)
    assert len(report.damage) == 1
    assert report.damage[0].word == "damaged"
    assert f"delete {report.damage[0].key}" in report.damage[0].do
