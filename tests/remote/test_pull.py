"""Pull: blobs are hashed before they get their names, and the result is the same checkpoint, published at once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import AmbiguousRef, CkstoreWarning, InsufficientSpace, NoSuchRef, RemoteError, RunInUse, StepExists, Store
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import short_id
from ckstore.model.seal import seal
from ckstore.objects import checkpoints
from ckstore.remote import keys, other_store
from ckstore.remote.push_plan import place_of
from tests.remote.double import Double, Fault, new_remote
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.stores import check_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.save(state(1), step=1, metrics={"loss": 2.0})
    return made


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "other", chunk_bytes=MIB)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return bool(found.keys() == wanted.keys()) and all(same(found[key], wanted[key]) for key in wanted)
    return np.array_equal(found, wanted) if isinstance(wanted, np.ndarray) else bool(found == wanted)


def test_a_pulled_checkpoint_is_the_same_checkpoint(store: Store, other: Store) -> None:
    store.annotate(1, metrics={"bleu": 1.5}, note="good")
    store.tag("best", 1)
    pin = store.pin(1, "paper")
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    report = other.pull(1, remote)
    assert report.new_count == 1
    assert report.moved_bytes == sum(len(data) for key, data in objects.held.items() if key.startswith(keys.BLOBS))
    mine, theirs = store.info(1), other.info(1)
    assert (mine.id, mine.content, mine.sequence) == (theirs.id, theirs.content, theirs.sequence)
    assert theirs.metrics == {"loss": 2.0, "bleu": 1.5}
    assert [note.text for note in theirs.notes] == ["good"]
    assert theirs.tags == ("best",)
    assert [(found.name, found.reason) for found in other.pins()] == [(pin.name, "paper")]
    assert same(other.load(1), state(1))
    assert other.verify().ok
    check_store(other.path)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[StorePath]:
    """Return a list that records each read of all tags."""
    found, texts = list[StorePath](), dirfd_stat.symlink_texts

    def read(where: StorePath, names: Sequence[str] | None = None) -> dict[str, str | None]:
        if names is None:  # not the read of single tags
            found.append(where)
        return texts(where, names)

    monkeypatch.setattr(dirfd_stat, "symlink_texts", read)
    return found


def test_many_tags_are_taken_in_one_batch(
    store: Store, other: Store, looks: list[StorePath], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once each tag caused a read of all tags, so that 100,000 tags of one checkpoint took minutes."""
    names = {f"t{number:02}" for number in range(30)}
    for name in names:
        store.tag(name, 1)
    other.remotes.add("there", store.path)
    synced, sync = list[object](), files.sync_directory

    def synchronized(where: StorePath) -> None:
        synced.append(where.name)
        sync(where)

    monkeypatch.setattr(files, "sync_directory", synchronized)
    looks.clear()

    other.pull(1, "there")

    assert {*other.info(1).tags} == names
    assert len(looks) < 15
    assert synced.count("refs") == 1


def test_the_number_of_tag_reads_does_not_grow_with_the_checkpoints(
    store: Store, other: Store, looks: list[StorePath], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 tags each look takes half a second, and so does the id of each tag's checkpoint."""
    for step in range(10, 18):
        store.save(state(step), step)
        store.tag(f"t{step}", step)
    other.remotes.add("there", store.path)
    ids, id_at = list[object](), checkpoints.id_at

    def looked(path: StorePath) -> str | None:
        ids.append(path)
        return id_at(path)

    def counted(*refs: int) -> tuple[int, int]:
        looks.clear()
        ids.clear()
        report = other.pull(refs, "there")
        found = len(looks), len(ids)
        assert [info.tags for info in report.checkpoints] == [other.info(ref).tags for ref in refs]
        return found

    monkeypatch.setattr(other_store, "id_at", looked)
    one, many = counted(17), counted(*range(10, 17))
    again = counted(*range(10, 17))
    for number in range(30):
        store.tag(f"u{number}", 17)
    tagged = counted(*range(10, 17))

    assert many[0] <= one[0] + 1
    assert again[0] <= one[0]
    assert tagged == again


def test_blobs_in_the_store_are_not_fetched(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    other.save(state(1), step=7, run="before")
    objects.forget_requests()
    report = other.pull(1, remote)
    assert report.new_count == 1
    assert report.moved_bytes == 0
    assert not [key for key in objects.keys_read if key.startswith(keys.BLOBS)]


def test_a_second_pull_fetches_no_blobs_but_later_metadata(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    other.pull(1, remote)
    other.annotate(1, metrics={"own": 1.0})
    store.annotate(1, metrics={"own": 5.0, "late": 2.0})
    store.push(1, remote)
    objects.forget_requests()
    report = other.pull(1, remote)
    assert report.new_count == report.moved_bytes == 0
    assert other.info(1).metrics == {"loss": 2.0, "own": 1.0, "late": 2.0}


def test_every_kind_of_ref_can_be_pulled(store: Store, other: Store) -> None:
    store.save(state(2), step=2)
    third = store.save(state(3), step=3)
    store.tag("best", 2)
    _, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)
    assert other.pull("latest", remote, dry_run=True).checkpoints[0].step == 3
    assert other.pull("best", remote, dry_run=True).checkpoints[0].step == 2
    assert other.pull(third.id[:14], remote, dry_run=True).checkpoints[0].step == 3
    assert other.pull("main@1", remote, dry_run=True).checkpoints[0].step == 1
    assert other.pull(third, remote, dry_run=True).checkpoints[0].id == third.id
    assert len(other.pull(remote=remote, all=True, dry_run=True).checkpoints) == 3
    assert [info.step for info in other.pull(remote=remote, tagged=True, dry_run=True).checkpoints] == [2]
    with pytest.raises(NoSuchRef, match="no step 9"):
        other.pull(9, remote)
    with pytest.raises(NoSuchRef, match="no tag 'worst'"):
        other.pull("worst", remote)
    store.save(state(4), step=1, run="second")
    store.push("second@1", remote)
    with pytest.raises(AmbiguousRef):
        other.pull("latest", remote)


def test_an_error_about_a_ref_names_the_remote_that_lacks_it(store: Store) -> None:
    store.save(state(2), step=2)
    store.tag("best", 2)
    _, remote = new_remote(store.settings)
    id = store.info(2).id
    for ref in (2, "second@2", "best", id, "latest", "latest-healthy", "best:loss"):
        with pytest.raises(NoSuchRef, match=rf"^{ref}: {remote} has no checkpoint"):
            store.pull(ref, remote)
    store.push(1, remote)
    for ref, says in ((2, "there is no step 2"), ("best", "there is no tag 'best'"), (id, "no id begins")):
        with pytest.raises(NoSuchRef, match=rf"^{remote}: {ref}: {says}"):
            store.pull(ref, remote)
    with pytest.raises(NoSuchRef, match=rf"^second@2: {remote} has no checkpoint of the run 'second'"):
        store.pull("second@2", remote)


def test_the_best_by_a_metric_is_found_as_in_a_store(store: Store, other: Store) -> None:
    for step, loss in ((2, 1.0), (3, 3.0)):
        store.save(state(step), step=step, metrics={"loss": loss})
    _, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)

    assert other.pull("best:loss", remote, dry_run=True).checkpoints[0].step == 2
    assert other.pull("main@best:loss:max", remote, dry_run=True).checkpoints[0].step == 3
    with pytest.raises(NoSuchRef, match="accuracy"):
        other.pull("best:accuracy", remote)


def test_latest_at_a_remote_is_the_last_in_commit_order(store: Store, other: Store) -> None:
    store.save(state(9), step=9)
    resumed = store.save(state(5), step=5)
    _, remote = new_remote(store.settings)
    store.push(9, remote)
    store.push(remote=remote, all=True)
    assert other.pull("latest", remote).checkpoints[0].id == resumed.id


def test_a_step_names_the_newer_of_two_checkpoints(store: Store, other: Store, tmp_path: Path) -> None:
    _, remote = new_remote(store.settings)
    old = store.push(1, remote).checkpoints[0]
    new = store.save(state(2), step=1, if_exists="replace")
    store.push(1, remote)
    assert other.pull(1, remote).checkpoints[0].id == new.id
    third = Store.init(tmp_path / "third", chunk_bytes=MIB)
    assert third.pull(old.id, remote).checkpoints[0].id == old.id


def test_a_pull_of_all_fetches_the_newest_of_each_step(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    store.push(1, remote)
    store.save(state(2), step=1, if_exists="replace")
    store.push(1, remote)
    plan = other.pull(all=True, remote=remote, dry_run=True)
    report = other.pull(all=True, remote=remote)
    assert [info.id for info in plan.new] == [info.id for info in report.checkpoints] == [store.info(1).id]
    assert same(other.load(1), state(2))


def test_a_pull_from_a_store_also_fetches_tagged_superseded_checkpoints(store: Store, other: Store) -> None:
    old = store.info(1).id
    store.tag("old", 1)
    store.save(state(2), step=1, if_exists="replace")
    assert other.pull([1, old], store.path).new_count == 2
    assert same(other.load(1), state(2))
    assert same(other.load("old"), state(1))
    check_store(other.path)


def test_an_incomplete_checkpoint_of_a_store_does_not_count(store: Store, other: Store) -> None:
    old = store.info(1)
    store.tag("old", 1)
    store.save(state(2), step=1, if_exists="replace")
    new = checkpoint_dir(store.path, "main", 1)
    assert store.info(1).id != old.id
    next((new / "blobs").iterdir()).unlink()
    assert other.pull(1, store.path).checkpoints[0].id == old.id


def test_a_plan_includes_the_bytes_of_an_evicted_checkpoint(store: Store) -> None:
    _, remote = new_remote(store.settings)
    store.push(1, remote)
    store.evict(1, remote)
    plan = store.pull(1, remote, dry_run=True)
    assert plan.moved_bytes == store.pull(1, remote).moved_bytes > 3 * MIB
    assert store.pull(1, remote, dry_run=True).moved_bytes == 0


@pytest.mark.parametrize("fault", ["flip", "fail"])
def test_a_corrupted_response_is_read_again(store: Store, other: Store, fault: Fault) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    harmed: set[str] = set()

    def harm_once(call: str, key: str) -> Fault | None:
        if call == "read" and key not in harmed:
            harmed.add(key)
            return fault
        return None

    objects.fault = harm_once
    other.pull(1, remote)
    assert len(harmed) > 3
    assert other.verify().ok


def test_a_damaged_blob_never_gets_its_name(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    key = next(key for key in objects.held if key.startswith(keys.BLOBS))
    objects.held[key] = objects.held[key][:-1] + bytes([objects.held[key][-1] ^ 1])
    with pytest.raises(RemoteError, match="is damaged"):
        other.pull(1, remote)
    assert other.checkpoints() == []
    assert not list(other.path.rglob(key.rpartition("/")[2]))
    assert other.verify().ok


@pytest.mark.parametrize("how", ["damaged", "another"])
def test_a_checkpoint_that_cannot_be_pulled_does_not_hold_up_others(store: Store, other: Store, how: str) -> None:
    for step in (2, 3):
        store.save(state(step), step=step)
        store.tag(f"t{step}", step)
    objects, remote = new_remote(store.settings)
    store.push(all=True, remote=remote)
    if how == "another":
        other.save({"x": 1}, step=2)
    else:
        key = place_of(store.info(2)).manifest
        objects.held[key] = objects.held[key][:-9]
    with pytest.raises(StepExists if how == "another" else RemoteError, match=r"step 2|main@2"):
        other.pull(all=True, remote=remote)
    assert {info.step for info in other.checkpoints()} >= {1, 3}
    assert other.info("t3").id == store.info(3).id
    assert same(other.load(3), state(3))


def test_a_missing_blob_is_named(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    key = next(key for key in objects.held if key.startswith(keys.BLOBS))
    objects.delete([key])
    with pytest.raises(RemoteError, match="is missing at away"):
        other.pull(1, remote)
    assert other.checkpoints() == []


def test_a_failed_pull_continues_where_it_stopped(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    bad = max(key for key in objects.held if key.startswith(keys.BLOBS))
    objects.fault = lambda call, key: "fail" if call == "read" and key == bad else None
    with pytest.raises(RemoteError):
        other.pull(1, remote)
    objects.fault = lambda *_: None
    objects.forget_requests()
    Store.open(other.path).pull(1, remote)
    assert objects.keys_read.count(bad) == 1
    assert len([key for key in objects.keys_read if key.startswith(keys.BLOBS)]) < len(
        os.listdir(blobs_dir(store.path, "main", 1))
    )
    assert other.verify().ok


def test_the_next_gc_frees_blobs_of_a_failed_pull(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    bad = max(key for key in objects.held if key.startswith(keys.BLOBS))
    objects.fault = lambda call, key: "fail" if call == "read" and key == bad else None
    with pytest.raises(RemoteError):
        other.pull(1, remote)
    other.gc()
    assert not list((other.path / "blobs").rglob("xxh3-*"))
    check_store(other.path)


def test_a_pull_replaces_a_checkpoint_of_the_step_only_on_request(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    pushed = store.push(1, remote).checkpoints[0]
    mine = other.save(state(5), step=1)
    blobs = sorted((other.path / "blobs").rglob("*"))
    with pytest.raises(StepExists):
        other.pull(1, remote)
    assert other.info(1).id == mine.id
    assert sorted((other.path / "blobs").rglob("*")) == blobs  # refused before the download
    planned = other.pull(1, remote, if_exists="keep", dry_run=True)
    kept = other.pull(1, remote, if_exists="keep")
    assert kept.checkpoints[0].id == mine.id
    assert sorted((other.path / "blobs").rglob("*")) == blobs
    assert {(one.new, one.moved_count, one.moved_bytes, one.reused_bytes) for one in (planned, kept)} == {((), 0, 0, 0)}
    assert other.pull(1, remote, if_exists="replace").checkpoints[0].id == pushed.id
    assert other.info(1).id == pushed.id
    check_store(other.path)


@pytest.mark.parametrize("if_exists", ["error", "keep", "replace"])
@pytest.mark.parametrize("tags", [(), ("mine",)])
def test_a_dry_run_lists_what_a_pull_would_refuse_keep_or_replace(
    store: Store, other: Store, if_exists: Any, tags: Sequence[str]
) -> None:
    _, remote = new_remote(store.settings)
    store.save(state(2), step=2)
    store.push([1, 2], remote)
    mine = other.save(state(5), step=1, tags=tags)
    digits = short_id(mine.id)

    would = other.pull([1, 2], remote, if_exists=if_exists, dry_run=True)

    assert [info.step for info in would.new] == ([1, 2] if if_exists == "replace" else [2])
    (warning,) = would.warnings
    if if_exists == "error":
        assert warning.startswith("main@1 would be refused: run main has another checkpoint at step 1")
        with pytest.raises(StepExists) as raised:
            other.pull([1, 2], remote)
        assert "step=" not in raised.value.hint
        return
    report = other.pull([1, 2], remote, if_exists=if_exists)
    assert (report.new_count, report.moved_bytes) == (would.new_count, would.moved_bytes)
    if if_exists == "keep":
        assert warning == f"main@1 would not be pulled: {digits} of this store would be kept"
    elif tags:
        assert warning.startswith("another checkpoint of main@1 would be kept: ")
        assert "has the tag mine" in warning
    else:
        assert warning == f"main@1 would replace {digits} of this store"
    assert (mine.id in [info.id for info in other.checkpoints(superseded=True)]) == (bool(tags) or if_exists == "keep")


@pytest.mark.parametrize("newer", ["there", "here"])
@pytest.mark.parametrize("kind", ["store", "objects"])
def test_checkpoints_replaced_by_a_pull_can_be_restored(store: Store, other: Store, kind: str, newer: str) -> None:
    """V9: whichever is newer, and even if the pulled checkpoint already exists locally as superseded."""
    remote = str(store.path) if kind == "store" else new_remote(store.settings)[1]
    other.config.undo_by_rule_s = 3600
    mine = other.save(state(5), step=1)
    if newer == "there":
        store.save(state(2), step=1, if_exists="replace")
    pulled, wanted = store.info(1), state(2 if newer == "there" else 1)
    if kind == "objects":
        store.push(1, remote)
    report = other.pull(1, remote, if_exists="replace")
    dropped = f"main@1: dropped {short_id(mine.id)} of this store, which was newer than {short_id(pulled.id)}"
    warned = () if newer == "there" else (f"{dropped}; ckstore undo can restore it",)
    assert (report.warnings, report.new_count) == (warned, 1)
    assert [info.id for info in other.checkpoints(superseded=True)] == [pulled.id]
    assert same(other.load(1), wanted)
    assert [entry.id for entry in other.undoable()] == [mine.id]

    with nullcontext() if newer == "here" else pytest.warns(CkstoreWarning, match="names a newer checkpoint"):
        assert other.undo(mine.id).id == mine.id
    assert same(other.load(mine.id), state(5))
    report = other.pull(pulled.id, remote, if_exists="replace")
    assert (report.warnings, report.new_count, report.moved_bytes) == (warned, 0, 0)
    assert (other.info(1).id, [entry.id for entry in other.undoable()]) == (pulled.id, [mine.id])
    check_store(other.path)


def test_a_replacing_pull_keeps_tagged_checkpoints_and_names_the_current_one(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    pushed = store.push(1, remote).checkpoints[0]
    mine = other.save(state(5), step=1, tags=["mine"])
    assert mine.order > pushed.order
    report = other.pull(1, remote, if_exists="replace")
    assert "has the tag mine" in report.warnings[0]
    assert "main@1 still names" in report.warnings[1]
    assert same(other.load(1), state(5))
    assert same(other.load(pushed.id), state(1))


def test_a_pull_warns_of_a_newer_checkpoint_that_it_drops_for_good(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    pushed = store.push(1, remote).checkpoints[0]
    mine = other.save(state(5), step=1)

    report = other.pull(1, remote, if_exists="replace")

    dropped = f"main@1: dropped {short_id(mine.id)} of this store, which was newer than {short_id(pushed.id)}"
    assert report.warnings == (f"{dropped}; it cannot be restored",)
    assert other.undoable() == ()


@pytest.mark.parametrize("kind", ["store", "objects"])
@pytest.mark.parametrize("how", ["all", "tagged", "refs"])
def test_a_named_superseded_checkpoint_is_pulled_with_the_newest(
    store: Store, other: Store, how: str, kind: str
) -> None:
    old = store.info(1)
    store.tag("old", 1)
    store.save(state(2), step=1, if_exists="replace", tags=["new"])
    remote = str(store.path)
    if kind == "objects":
        remote = new_remote(store.settings)[1]
        store.push(all=True, remote=remote)
    refs = ["old", "new"] if how == "refs" else None
    report = other.pull(refs, remote, all=how == "all", tagged=how == "tagged")
    assert (report.new_count, report.warnings) == (2, ())
    assert same(other.load(1), state(2))
    assert same(other.load("old"), state(1))
    assert other.info("old").id == old.id
    assert other.info("old").superseded
    assert other.pull(refs, remote, all=how == "all", tagged=how == "tagged").new_count == 0
    other.gc(now=True)
    assert same(other.load("old"), state(1))
    check_store(other.path)


def test_a_checkpoint_with_the_same_content_counts_as_pulled(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    store.push(1, remote)
    mine = other.save(state(1), step=1)
    assert other.pull(1, remote).checkpoints[0].id == mine.id


def test_a_pull_does_not_move_a_local_tag(store: Store, other: Store) -> None:
    store.tag("best", 1)
    _, remote = new_remote(store.settings)
    store.push(1, remote)
    other.save(state(5), step=5)
    other.tag("best", 5)
    report = other.pull(1, remote)
    assert re.search(r"the tag best names main@5\.\w{10} locally and main@1\.\w{10} at away", report.warnings[0])
    assert other.info("best").step == 5


def test_later_saves_follow_pulled_checkpoints_in_commit_order(store: Store, other: Store) -> None:
    for step in range(2, 6):
        store.save(state(1), step=step)
    _, remote = new_remote(store.settings)
    store.push(5, remote)
    other.pull(5, remote)
    assert other.save(state(6), step=1).sequence > store.info(5).sequence
    assert other.latest(run="main") is not None
    assert other.info("latest").step == 1


def test_a_hostile_manifest_is_refused_by_the_reader_of_every_manifest(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    place = keys.Place("main", 1, info.id)
    whole = objects.held[place.manifest]
    for bad in (whole[:-5], whole.replace(b'"run":"main"', b'"run":"../a"'), b"{}", b"\xff" * 100):
        objects.put(place.manifest, bad)
        with pytest.raises(RemoteError):
            other.pull(1, remote)
    # Under another key: a whole manifest that is not that of its place.
    objects.put(keys.Place("main", 2, info.id).manifest, whole)
    with pytest.raises(RemoteError, match="expected id"):
        other.pull("main@2", remote)
    assert other.checkpoints() == []


@pytest.mark.parametrize(
    "key",
    [
        "checkpoints/../../etc/1/xxh3-00000000000000000000000000000000/manifest.json",
        "checkpoints/main/01/xxh3-00000000000000000000000000000000/manifest.json",
        "checkpoints/main/1/../manifest.json",
        "checkpoints/main/1/xxh3-0/manifest.json",
        "checkpoints/main/1/manifest.json",
    ],
)
def test_keys_of_another_form_are_ignored(store: Store, other: Store, key: str) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    objects.put(key, b"{}")
    objects.put("refs/../../x.json", b"{}")
    objects.put("pins/../x.json", b"{}")
    assert len(other.pull(remote=remote, all=True).checkpoints) == 1


def test_a_damaged_annotation_or_pin_is_reported_and_blocks_no_pull(store: Store, other: Store) -> None:
    store.annotate(1, metrics={"bleu": 1.0})
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    objects.put(keys.Place("main", 1, info.id).annotations, b"[]")
    objects.put("pins/odd.json", seal(json.dumps({"format": "ckstore-pin", "version": 1}).encode()))
    report = other.pull(1, remote)
    assert len(report.warnings) == 2
    assert other.verify().ok


def test_a_removed_checkpoint_is_not_found(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    objects.put(keys.Place("main", 1, info.id).dropped, b"{}")
    with pytest.raises(NoSuchRef):
        other.pull(1, remote)


def test_a_blob_under_a_later_name_is_found(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    key = next(key for key in objects.held if key.startswith(keys.BLOBS))
    objects.put(f"{key}.1", b"x" * len(objects.held[key]))
    objects.put(f"{key}.10", objects.held[key])
    objects.delete([key])
    other.pull(1, remote)
    assert other.verify().ok


def test_missing_space_is_reported_before_anything_is_fetched(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.fs import dirfd_stat

    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    room = dirfd_stat.free_space(other.path)
    monkeypatch.setattr(dirfd_stat, "free_space", lambda _: room._replace(free_bytes=MIB))
    with pytest.raises(InsufficientSpace, match="nothing was fetched"):
        other.pull(1, remote)
    assert objects.requests["read"] == 0


def test_memory_is_bounded_by_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckstore.remote import budget

    monkeypatch.setattr(budget.MemoryBudget.__init__, "__defaults__", (3 * MIB,))
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.save({"big": np.random.default_rng(1).integers(0, 255, 24 * MIB, dtype=np.uint8)}, step=1)
    objects, remote = new_remote(store.settings)
    _hold_in_flight(objects)
    store.push(1, remote)
    assert 0 < objects.most_in_flight_bytes <= 3 * MIB
    objects.most_in_flight_bytes = 0
    Store.init(tmp_path / "other", chunk_bytes=MIB).pull(1, remote)
    assert 0 < objects.most_in_flight_bytes <= 3 * MIB


def _hold_in_flight(objects: Double) -> None:
    import time

    carry = objects._carry

    def slowly(nbytes: int) -> None:
        with objects._mutex:
            objects._in_flight += nbytes
            objects.most_in_flight_bytes = max(objects.most_in_flight_bytes, objects._in_flight)
        time.sleep(0.01)
        with objects._mutex:
            objects._in_flight -= nbytes
        carry(0)

    objects._carry = slowly  # type: ignore[method-assign]


def test_progress_ends_at_the_planned_bytes(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    said: list[tuple[int, int]] = []
    moved = store.push(1, remote, progress=lambda *at: said.append(at)).moved_bytes
    assert said[-1] == (moved, moved)
    said.clear()
    other.pull(1, remote, progress=lambda *at: said.append(at))
    assert said[-1] == (moved, moved)


def test_a_pull_may_name_a_run_that_run_auto_reserved_and_its_checkpoint_is_not_replaced(
    store: Store, other: Store
) -> None:
    training = Store.open(other.path, run="auto")
    assert training.run == "main"
    _, remote = new_remote(store.settings)
    store.push(1, remote)

    pulled = other.pull(1, remote).checkpoints

    with pytest.raises(StepExists):
        training.save(state(2), step=1)
    with pytest.raises(RunInUse, match=r"main@1 of .* belongs to another training"):
        training.save(state(2), step=1, if_exists="replace")
    training.save(state(2), step=2)  # logs that it continues no checkpoint of its run
    assert [info.id for info in other.checkpoints("main")][:1] == [info.id for info in pulled]
    assert Store.open(other.path, run="auto").run == "main-2"
