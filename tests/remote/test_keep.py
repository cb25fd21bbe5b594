"""`keep_local` evicts bytes that the mirror has. `keep_remote` removes unkept checkpoints from the mirror."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from ckstore import BadInput, NoSuchRemote, RetentionPolicy, Store
from ckstore.model.settings.free_space import Amount
from ckstore.model.sizes import size_text
from ckstore.ops.free.make_room import how_to_free
from ckstore.provisional import RetentionPlan
from ckstore.remote import keys
from ckstore.remote.metadata_sync import named_at
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.push_plan import place_of
from ckstore.remote.service.remote_entries import open_objects
from ckstore.remote.service.target import Target
from ckstore.remote.small_objects import tag_bytes
from ckstore.remote.source import ObjectSource
from ckstore.store import context_of
from tests.remote.test_listing import later
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.remote.test_rescue import drifting
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def store(store_with_mirror: Store) -> Store:
    return store_with_mirror


def mirrored(store: Store) -> None:
    mirror = Mirror(context_of(store))
    while mirror.step():
        pass
    mirror.tidy()


def there(store: Store) -> list[int]:
    """Return the steps on the mirror."""
    listed = open_objects(store.remotes.get("cold").target).list(keys.CHECKPOINTS)
    return sorted(place.step for one in listed if (place := keys.place_in(one.key)) is not None)


def here(store: Store) -> list[tuple[int, bool]]:
    """Return the steps that the store lists, and whether each has local bytes."""
    return [(info.step, not info.elsewhere) for info in store.checkpoints()]


def events(store: Store, kind: str) -> list[tuple[int | None, str]]:
    return [(event.step, event.why) for event in store.events() if event.event == kind]


def test_bytes_beyond_keep_local_are_evicted_once_the_mirror_has_them(store: Store) -> None:
    store.config.keep_local = RetentionPolicy(keep_last=2)
    for step in range(1, 5):
        store.save(state(step), step=step)
    assert all(whole for _, whole in here(store))

    mirrored(store)

    assert here(store) == [(1, False), (2, False), (3, True), (4, True)]
    assert there(store) == [1, 2, 3, 4]
    assert len(events(store, "evicted")) == 2
    assert "keep_local: it is not among the 2 newest" in events(store, "evicted")[0][1]
    assert same(store.load(1), state(1))
    assert store.verify().ok


def test_checkpoints_keep_their_bytes_for_a_tag_a_pin_or_the_mirror_and_the_plan_gives_the_reason(store: Store) -> None:
    store.config.keep_local = RetentionPolicy(keep_last=1)
    for step in range(1, 4):
        store.save(state(step), step=step)
    store.tag("best", 1)
    mirrored(store)
    store.save(state(4), step=4)
    store.save(state(5), step=5)

    report = store.evict(rule=True, dry_run=True)

    reasons = {entry.info.step: entry.reasons for entry in report.plan.entries} if report.plan else {}
    assert here(store) == [(1, True), (2, False), (3, True), (4, True), (5, True)]
    assert [info.step for info in report.evicted] == [3]
    assert "it has the tag best" in reasons[1]
    assert "it is not at the mirror cold yet" in reasons[4]
    assert "would evict main@3 because it is not the newest" in str(report)
    with pytest.raises(BadInput, match="others were given"):
        store.evict(3, rule=True)
    assert [info.step for info in store.evict(rule=True).evicted] == [3]


def test_compacted_checkpoints_that_were_pushed_plain_are_evicted(store: Store) -> None:
    for step, value in enumerate(drifting(4), 1):
        store.save({"w": value}, step=step, metrics={"loss": step})
        store.annotate(step, note=f"note {step}")
    mirrored(store)
    assert [done.info.step for done in store.compact(keep_newest=2).compacted] == [2, 1]
    ids = [info.id for info in store.checkpoints()]

    assert [info.step for info in store.evict(2).evicted] == [2]

    # The files that the first one is decoded with remain.
    assert [(info.step, info.elsewhere, info.compacted) for info in store.checkpoints()[:2]] == [
        (1, False, True),
        (2, True, False),
    ]
    store.config.keep_local = RetentionPolicy(keep_last=1)
    report = store.evict(rule=True)
    assert ([info.step for info in report.evicted], report.skipped) == ([1, 3], ())
    assert report.freed_bytes > 0
    assert {path.name for path in store.path.glob("blobs/*/*")} == {
        path.name for path in blobs_dir(store.path, "main", 4).iterdir()
    }
    assert [info.id for info in store.checkpoints()] == ids
    assert [info.notes[0].text for info in store.checkpoints()] == [f"note {step}" for step in range(1, 5)]
    for step, value in enumerate(drifting(4), 1):
        assert np.array_equal(store.load(step)["w"], value)
    assert store.verify().ok
    store.pull(all=True, remote="cold")
    assert not any(info.elsewhere for info in store.checkpoints())
    assert store.verify().ok
    assert [done.info.step for done in store.compact(keep_newest=2).compacted] == [2, 1]
    check_store(store.path)


def test_a_compacted_checkpoint_stays_local_if_the_remote_lacks_bytes(store: Store) -> None:
    for step, value in enumerate(drifting(4), 1):
        store.save({"w": value}, step=step)
    mirrored(store)
    own = {path.name for path in blobs_dir(store.path, "main", 1).iterdir()}
    store.compact(keep_newest=2)
    objects = open_objects(store.remotes.get("cold").target)
    objects.delete([one.key for one in objects.list(keys.BLOBS) if one.key.rpartition("/")[2] in own])

    (skipped,) = store.evict(1).skipped

    assert skipped.reason.startswith("cold does not have blob")
    assert (store.info(1).elsewhere, store.info(1).compacted) == (False, True)
    assert store.remotes.claims("cold") == ()
    assert not (checkpoint_dir(store.path, "main", 1) / "elsewhere.json").exists()
    check_store(store.path)


@pytest.mark.parametrize("by", ["tag", "pin"])
def test_a_checkpoint_named_after_keep_remote_removed_it_is_mirrored_again(store: Store, by: str) -> None:
    store.config.keep_remote = RetentionPolicy(keep_last=2)
    for step in range(1, 5):
        store.save(state(step), step=step)
    mirrored(store)
    assert there(store) == [3, 4]

    if by == "tag":
        store.tag("paper", 1)
    else:
        store.pin(1, "for the paper")

    status = store.mirror_status()
    assert status is not None
    assert [info.step for info in status.behind] == [1]
    mirrored(store)
    assert there(store) == [1, 3, 4]
    objects = open_objects(store.remotes.get("cold").target)
    assert named_at(ObjectSource(objects, "cold")) == {store.info(1).id}
    check_store(store.path)


@pytest.mark.parametrize("by", ["tag", "pin"])
def test_a_restored_store_mirrors_again_what_it_names_and_keep_remote_had_removed(
    store: Store, tmp_path: Path, by: str
) -> None:
    store.config.keep_remote = RetentionPolicy(keep_last=2)
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    path = store.path
    store.close()
    shutil.copytree(path, tmp_path / "backup", symlinks=True)
    with Store.open(path) as later:
        for step in (3, 4):
            later.save(state(step), step=step)
        mirrored(later)
        assert there(later) == [3, 4]
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path, symlinks=True)

    with Store.open(path) as restored:
        restored.save(state(5), step=5)
        if by == "tag":
            restored.tag("paper", 1)
        else:
            restored.pin(1, "for the paper")
        mirrored(restored)
        mirrored(restored)  # the first one ended by listing the mirror

        # The policy keeps the two newest of this store, and of the mirror.
        assert there(restored) == [1, 2, 4, 5]
        objects = open_objects(restored.remotes.get("cold").target)
        assert named_at(ObjectSource(objects, "cold")) == {restored.info(1).id}
        status = restored.mirror_status()
        assert status is not None
        assert (status.behind, status.ok) == ((), True)
    check_store(path)


@pytest.mark.parametrize("how", ["deleted", "removed"])
def test_a_tag_of_a_checkpoint_that_another_program_removed_from_the_mirror_brings_it_back(
    store: Store, how: str
) -> None:
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    objects, place = open_objects(store.remotes.get("cold").target), place_of(store.info(1))
    if how == "deleted":
        objects.delete([place.manifest])
    else:  # a policy decides which checkpoints remain there
        store.config.keep_remote = RetentionPolicy(keep_last=1)
        objects.send(place.dropped, b"{}")

    store.tag("paper", 1)
    mirrored(store)

    assert there(store) == [1, 2]
    assert named_at(ObjectSource(objects, "cold")) == {store.info(1).id}
    check_store(store.path)


def test_what_another_store_removed_of_its_run_is_not_mirrored_again_by_one_that_pulled_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.remotes.add("cold", store.remotes.get("cold").target.address)
    other.pull(1, "cold")
    other.config.mirror, other.config.keep_remote = "cold", RetentionPolicy(keep_last=2)
    mirrored(other)
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    mirrored(store)
    assert there(store) == [2]

    later(monkeypatch)
    other.tag("paper", 1)
    mirrored(other)

    assert there(store) == [2]
    status = other.mirror_status()
    assert status is not None
    assert (status.behind, status.problem, status.missing) == ((), "", ())
    assert status.removed == ("main@1",)
    assert "has every other checkpoint" in str(status)
    assert "another store or a user removed 1 checkpoint from it, such as main@1" in str(status)
    assert 'ckstore_mirror_removed{remote="cold"' in other.metrics()
    assert same(other.load(1), state(1))
    other.push(1, "cold")
    later(monkeypatch, 2)
    mirrored(other)
    status = other.mirror_status()
    assert status is not None
    assert (status.removed, there(store)) == ((), [1, 2])


def test_keep_remote_removes_from_the_mirror_and_drops_listed_checkpoints_locally(store: Store) -> None:
    store.config.keep_local = RetentionPolicy(keep_last=1)
    store.config.keep_remote = RetentionPolicy(keep_last=2, keep_every=3)
    for step in range(1, 7):
        store.save(state(step), step=step)
    mirrored(store)

    assert there(store) == [3, 5, 6]
    assert here(store) == [(3, False), (5, False), (6, True)]
    assert {step for step, _ in events(store, "pruned")} == {1, 2, 4}
    for step in (3, 5, 6):
        assert same(store.load(step), state(step))
    assert store.verify().ok
    # It does not come back by the next push.
    store.save(state(7), step=7)
    mirrored(store)
    assert there(store) == [3, 6, 7]
    assert here(store) == [(3, False), (6, False), (7, True)]


def test_checkpoints_with_local_bytes_stay_whatever_the_mirror_keeps(store: Store) -> None:
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    for step in (1, 2, 3):
        store.save(state(step), step=step)
    store.pin(1, "a paper names it")
    plan = store.remotes.prune("cold", dry_run=True).retention
    assert plan is not None
    assert plan.plan.entries == ()
    mirrored(store)
    assert there(store) == [1, 3]
    assert here(store) == [(1, True), (2, True), (3, True)]
    store.unpin(1)
    report = store.remotes.prune("cold", dry_run=True).retention
    assert report is not None
    if store.remotes.get("cold").target.kind == "url":
        # The pin went there with its checkpoint, and protects it there.
        assert [entry.info.step for entry in report.plan.dropped] == []
    assert there(store) == [1, 3]


def test_local_retention_keeps_checkpoints_that_the_mirror_lacks_and_will_keep(store: Store) -> None:
    store.config.mirror_keep = 0
    store.config.retention = RetentionPolicy(keep_last=1)
    store.config.keep_remote = RetentionPolicy(keep_last=1, keep_every=2)
    for step in range(1, 6):
        store.save(state(step), step=step)
    assert here(store) == [(2, True), (4, True), (5, True)]
    mirrored(store)
    store.save(state(6), step=6)
    assert here(store) == [(6, True)]
    assert there(store) == [2, 4, 5]


def test_evicted_checkpoints_do_not_count_for_keep_local(store: Store) -> None:
    for step in range(1, 5):
        store.save(state(step), step=step)
    mirrored(store)
    store.evict(4)
    store.config.keep_local = RetentionPolicy(keep_last=2)

    report = store.evict(rule=True)
    assert ([info.step for info in report.evicted], report.skipped) == ([1], ())
    assert here(store) == [(1, False), (2, True), (3, True), (4, False)]


def test_local_tags_and_pins_added_after_the_push_keep_a_checkpoint_on_the_mirror(store: Store) -> None:
    for step in range(1, 5):
        store.save(state(step), step=step)
    mirrored(store)
    store.tag("best", 1)
    store.pin(2, "a paper names it")
    store.config.keep_remote = RetentionPolicy(keep_last=1)

    report = store.remotes.prune("cold").retention

    assert report is not None
    reasons = {entry.info.step: " ".join(entry.reasons) for entry in report.plan.entries}
    assert there(store) == [1, 2, 4]
    assert "the tag best in this store" in reasons[1]
    assert "pinned in this store" in reasons[2]


def test_an_open_listed_checkpoint_stays_locally_and_on_the_mirror(store: Store) -> None:
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    store.evict(1)
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    # Another program deleted the claim of the eviction, which would also keep the checkpoint.
    objects = open_objects(store.remotes.get("cold").target)
    objects.delete([one.key for one in objects.list(keys.CLAIMS)])

    with store.open_checkpoint(1) as ckpt:
        report = store.remotes.prune("cold").retention
        assert report is not None
        assert [one.info.step for one in report.skipped] == [1]
        assert there(store) == [1, 2]
        assert same(ckpt.load(), state(1))
    store.remotes.prune("cold")
    assert there(store) == [2]
    assert here(store) == [(2, True)]
    check_store(store.path)


@pytest.mark.parametrize("how", ["deleted", "open", "listed"])
def test_a_dry_run_of_keep_remote_lists_what_the_real_run_deletes(store: Store, how: str) -> None:
    store.config.undo_by_hand_s = 3600
    for step in (1, 2, 3):
        store.save(state(step), step=step)
    mirrored(store)
    store.evict(1)
    if how == "deleted":  # the claim of the store protects what it can still restore
        store.delete(1)
    store.config.keep_remote = RetentionPolicy(keep_last=1)

    with store.open_checkpoint(1) if how == "open" else nullcontext():
        would, report = store.remotes.prune("cold", dry_run=True).retention, store.remotes.prune("cold").retention

    assert would is not None
    assert report is not None
    assert [one.step for one in would.dropped] == [one.step for one in report.dropped]
    assert [str(one) for one in would.skipped] == [str(one) for one in report.skipped]
    assert [one.info.step for one in would.skipped] == ([] if how == "listed" else [1])


@pytest.fixture
def replaced(tmp_path: Path, memory: Target) -> tuple[Store, list[str]]:
    """Return a store whose mirror has three checkpoints of step 1, and their ids, the oldest first."""
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", memory.address)
    store.config.mirror = "cold"
    ids = []
    for seed in (1, 2, 3):
        ids.append(store.save(state(seed), step=1, if_exists="replace").id)
        mirrored(store)
    store.save(state(4), step=2)
    mirrored(store)
    return store, ids


def ids_there(store: Store) -> set[str]:
    listed = open_objects(store.remotes.get("cold").target).list(keys.CHECKPOINTS)
    return {place.id for one in listed if (place := keys.place_in(one.key)) is not None}


def test_keep_remote_removes_checkpoints_replaced_by_a_later_save_of_their_step(
    replaced: tuple[Store, list[str]],
) -> None:
    store, ids = replaced
    newest = {info.id for info in store.checkpoints()}
    assert ids_there(store) == {*ids, *newest}
    store.config.keep_remote = RetentionPolicy(keep_last=10)

    planned = store.remotes.prune("cold", dry_run=True).retention
    report = store.remotes.prune("cold").retention

    assert planned is not None
    assert report is not None
    assert [entry.info.id for entry in planned.plan.dropped] == [info.id for info in report.dropped] == ids[:2]
    assert planned.plan.dropped[0].reasons == (f"its step was saved again: it now names {ids[2]}",)
    assert ids_there(store) == newest
    objects = open_objects(store.remotes.get("cold").target)
    assert all(objects.head(keys.Place("main", 1, id).dropped) is not None for id in ids[:2])
    assert store.remotes.prune("cold").retention.plan.dropped == ()  # type: ignore[union-attr]
    assert same(store.load(1), state(3))


def test_a_replaced_checkpoint_stays_if_tagged_pinned_or_listed(
    replaced: tuple[Store, list[str]], tmp_path: Path
) -> None:
    store, ids = replaced
    objects = open_objects(store.remotes.get("cold").target)
    objects.put(keys.tag("paper"), tag_bytes(keys.Place("main", 1, ids[0])))
    # Another node, whose store has the second one.
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.remotes.add("cold", store.remotes.get("cold").target.address)
    other.pull(ids[1], "cold")
    other.save(state(9), step=9)
    other.config.mirror = "cold"
    other.config.keep_remote = RetentionPolicy(keep_last=10)
    assert other.remotes.prune("cold").retention.dropped == ()  # type: ignore[union-attr]
    assert {*ids} <= ids_there(store)

    store.config.keep_remote = RetentionPolicy(keep_last=10)
    report = store.remotes.prune("cold").retention

    assert report is not None
    assert [info.id for info in report.dropped] == [ids[1]]
    reasons = {entry.info.id: entry.reasons for entry in report.plan.entries}
    assert reasons[ids[0]] == ("it has the tag paper",)


def test_a_listed_checkpoint_is_not_replaced_by_the_save_of_another_store(store: Store, tmp_path: Path) -> None:
    """Its step has a newer checkpoint on the mirror, and the policy does not keep it for another reason."""
    first = store.save(state(1), step=1).id
    store.save(state(2), step=2)
    mirrored(store)
    # Another training uses the same run by mistake.
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.remotes.add("cold", store.remotes.get("cold").target.address)
    newer = other.save(state(3), step=1).id
    other.push(1, remote="cold")
    store.config.keep_remote = RetentionPolicy(keep_last=1)

    report = store.remotes.prune("cold").retention

    assert report is not None
    assert [info.id for info in report.dropped] == [newer]
    reasons = {entry.info.id: entry.reasons for entry in report.plan.entries}
    assert reasons[first] == ("this store has it as the newest of its step",)
    assert first in ids_there(store)
    check_store(store.path)
    check_store(other.path)


def test_a_replaced_checkpoint_stays_while_its_replacement_is_missing(
    replaced: tuple[Store, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = replaced
    store.config.keep_remote = RetentionPolicy(keep_last=10)
    objects = open_objects(store.remotes.get("cold").target)
    newest = keys.Place("main", 1, ids[2])
    real = KeepRemote.plan

    def plan_late(self: KeepRemote) -> RetentionPlan:
        made = real(self)
        # Another client removes the newest meanwhile.
        objects.put(newest.dropped, b"{}")
        objects.delete([newest.manifest])
        return made

    monkeypatch.setattr(KeepRemote, "plan", plan_late)
    report = store.remotes.prune("cold").retention

    assert report is not None
    assert report.dropped == ()
    assert [one.info.id for one in report.skipped] == ids[:2]
    assert {*ids[:2]} <= ids_there(store)


def test_an_unreadable_tag_on_the_mirror_stops_keep_remote(tmp_path: Path, memory: Target) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", memory.address)
    store.config.mirror = "cold"
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    open_objects(memory).put("refs/best.json", b"{")
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    with pytest.raises(BadInput, match=r"best\.json"):
        store.remotes.prune("cold")
    assert there(store) == [1, 2]


def test_without_a_policy_or_a_mirror_the_error_names_the_setting(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    with pytest.raises(BadInput, match="no policy keep_local"):
        store.evict(rule=True)
    store.config.keep_local = RetentionPolicy(keep_last=1)
    with pytest.raises(BadInput, match="no mirror"):
        store.evict(rule=True)


def test_the_advice_on_space_names_no_mirror_that_does_not_answer(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    store.remotes.add("cold", tmp_path / "mirror")
    store.config.mirror = "cold"
    for step in (1, 2):
        store.save(state(step), step=step)
    mirrored(store)
    assert "evict --all --remote cold" in how_to_free(context_of(store), Amount(2**40))

    (tmp_path / "mirror").rename(tmp_path / "moved")

    advice = how_to_free(context_of(store), Amount(2**20))
    assert "evict" not in advice
    assert re.fullmatch(r"ckstore prune --keep-last 1 and then gc would free \S+ MiB", advice)


@pytest.mark.parametrize("evicted", [[], [4], [1, 4]])
def test_the_advice_on_space_is_true_while_compacted_checkpoints_hold_data(
    store: Store, tmp_path: Path, evicted: list[int]
) -> None:
    store.config.undo_by_hand_s = 0
    for step, value in enumerate(drifting(5), 1):
        store.save({"w": value}, step=step)
    mirrored(store)
    assert [done.info.step for done in store.compact(keep_newest=2).compacted] == [3, 2, 1]
    store.evict(evicted, "cold")
    store.gc()

    advice = how_to_free(context_of(store), Amount(2**40))

    actions: dict[str, Callable[[Store], object]] = {
        "ckstore evict --all --remote cold": lambda copy: copy.evict(all=True, remote="cold"),
        "ckstore prune --keep-last 3 and then gc": lambda copy: copy.prune(RetentionPolicy(keep_last=3)),
        "ckstore prune --keep-last 1 and then gc": lambda copy: copy.prune(RetentionPolicy(keep_last=1)),
    }
    for action, carry_out in actions.items():
        path = tmp_path / action.replace(" ", "")
        subprocess.run(["cp", "-a", store.path, path], check=True)
        with Store.open(path) as copy:
            before = bytes_on_disk(path)
            carry_out(copy)
            copy.gc(now=True)
            freed = before - bytes_on_disk(path)
        assert f"{action} would free {size_text(freed)}" in advice, (action, freed, advice)


def bytes_on_disk(store: Path) -> int:
    """Return the size of all blobs of a store, each file once."""
    found = (path.stat() for path in (*store.glob("checkpoints/*/*/blobs/*"), *store.glob("blobs/*/*")))
    return sum({status.st_ino: status.st_size for status in found}.values())


def test_a_checkpoint_restored_by_undo_is_mirrored_again_if_keep_remote_keeps_it(store: Store) -> None:
    store.config.undo_by_hand_s = 86_400
    for step in range(1, 6):
        store.save(state(step), step=step)
    mirrored(store)
    store.config.keep_remote = RetentionPolicy(keep_last=3)
    for step in (1, 2):
        store.delete(step)
    store.remotes.prune("cold")
    assert there(store) == [3, 4, 5]
    store.save(state(6), step=6)
    mirrored(store)
    store.config.keep_remote = RetentionPolicy(keep_last=50)
    for step in (1, 2):
        store.undo(step)

    mirrored(store)

    assert there(store) == [1, 2, 3, 4, 5, 6]
    check_store(store.path)


@pytest.mark.parametrize("policy", [None, RetentionPolicy(keep_last=50)])
def test_without_a_record_the_owner_of_a_run_mirrors_again_what_it_had_removed(
    store: Store, policy: RetentionPolicy | None
) -> None:
    for step in range(1, 6):
        store.save(state(step), step=step)
    store.config.keep_remote = RetentionPolicy(keep_last=2)
    mirrored(store)
    assert there(store) == [4, 5]
    (store.path / "remotes" / ".mirror.json").unlink()
    store.config.keep_remote = policy

    mirrored(store)

    assert there(store) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["removed", "another"])
def test_retention_keeps_the_checkpoints_of_a_mirror_that_no_longer_exists(store: Store, how: str) -> None:
    store.config.keep_remote = RetentionPolicy(keep_last=50)
    for step in range(1, 6):
        store.save(state(step), step=step)
    mirrored(store)
    objects = open_objects(store.remotes.get("cold").target)
    objects.delete([one.key for one in objects.list("")])
    if how == "another":
        other = Store.init(store.path.parent / "other", chunk_bytes=MIB)
        other.remotes.add("cold", store.remotes.get("cold").target.address)
    store.save(state(6), step=6)
    mirror = Mirror(context_of(store))
    mirror.step()
    assert isinstance(mirror.problem, NoSuchRemote)
    store.config.retention = RetentionPolicy(keep_last=2)

    info = store.save(state(7), step=7)

    assert [step for step, _ in here(store)] == [1, 2, 3, 4, 5, 6, 7]
    assert info.warnings == ()


def test_the_status_names_evicted_checkpoints_that_only_a_former_mirror_has(store: Store, tmp_path: Path) -> None:
    for step in range(1, 4):
        store.save(state(step), step=step)
    mirrored(store)
    store.evict([1, 2], "cold")
    store.remotes.add("new", tmp_path / "new")
    store.config.mirror = "new"

    mirrored(store)

    status = store.mirror_status()
    assert status is not None
    assert (status.on_other_remotes, status.behind, status.ok) == (("main@1", "main@2"), (), False)
    assert "lacks 2 checkpoints that only other remotes have, such as main@1" in str(status)
    assert [(one.level, one.do) for one in store.doctor().findings if one.what == "mirror"] == [
        ("warning", "download them, and the mirror gets them: ckstore pull main@1")
    ]
    store.pull([1, 2], remote="cold")
    mirrored(store)
    status = store.mirror_status()
    assert status is not None
    assert (status.on_other_remotes, status.ok) == ((), True)
    assert [step for step, _ in here(store)] == [1, 2, 3]


def test_a_mirror_process_that_lives_on_raises_the_numbers_of_a_restored_store(store: Store, tmp_path: Path) -> None:
    store.save(state(1), step=1)
    mirrored(store)
    shutil.copytree(store.path, tmp_path / "backup", symlinks=True)
    mirror = Mirror(context_of(store))
    for step in (2, 3, 4):
        store.save(state(step), step=step)
        assert mirror.step()
    path = store.path
    newest = store.info(4).sequence
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path, symlinks=True)
    with Store.open(path) as restored:
        restored.save(state(5), step=5)
        while mirror.step():
            pass

        assert restored.save(state(6), step=6).sequence > newest
