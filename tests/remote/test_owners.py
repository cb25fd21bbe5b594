"""One store mirrors a run to a bucket, and its saves follow all checkpoints in the bucket in commit order."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckstore import RemoteError, RetentionPolicy, RunIsOwned, Store
from ckstore.remote import keys
from ckstore.remote.documents.run_owner import LIFE_S, read_owner
from ckstore.remote.mirror import ownership
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.objects import Remote
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.small_objects import read_tags
from ckstore.store import context_of
from ckstore_cli.app import app
from tests.remote.double import REMOTES, Double, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")
really_gone = ownership._is_dead


@pytest.fixture(autouse=True)
def _other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a separate machine for every store."""
    monkeypatch.setattr(ownership, "_is_dead", lambda _: False)


def mirrored_by(path: Path, name: str) -> Store:
    """Return a store with a mirror, and no checkpoint."""
    store = Store.init(path, chunk_bytes=MIB)
    # The name leads to the double; the settings need a place for it.
    store.remotes.add(name, path.parent / "place")
    store.config.mirror = name
    return store


@pytest.fixture
def bucket(tmp_path: Path) -> tuple[Double, str]:
    objects, name = new_remote(Store.init(tmp_path / "settings", chunk_bytes=MIB).settings)
    return objects, name


@pytest.fixture
def two(tmp_path: Path, bucket: tuple[Double, str]) -> tuple[Store, Store]:
    """Return two stores that mirror the run ``main`` to the bucket."""
    return mirrored_by(tmp_path / "first", bucket[1]), mirrored_by(tmp_path / "second", bucket[1])


def all_steps(store: Store) -> None:
    mirror = Mirror(context_of(store))
    while mirror.step():
        pass
    if mirror.problem is not None:
        raise mirror.problem
    mirror.tidy()


def owner_of(name: str) -> tuple[str, int, int]:
    found = read_owner(REMOTES[name].objects, "main")
    assert found is not None
    return found[0].store, found[0].epoch, found[0].sequence


def manifests(objects: Double) -> set[int]:
    places = (keys.place_in(key) for key in objects.held)
    return {place.step for place in places if place is not None}


def test_a_second_store_that_mirrors_a_run_is_refused_and_keeps_its_checkpoints(
    bucket: tuple[Double, str], two: tuple[Store, Store]
) -> None:
    objects, name = bucket
    first, second = two
    first.config.keep_remote = second.config.keep_remote = RetentionPolicy(keep_last=2)
    for step in (1, 2):
        first.save(state(step), step=step)
    all_steps(first)
    second.save(state(7), step=7)

    with pytest.raises(RunIsOwned, match=f"the store {first.path} on .* mirrors the run main") as raised:
        all_steps(second)
    assert f"ckstore remote take-over {name} main" in raised.value.hint
    assert manifests(objects) == {1, 2}
    status = second.mirror_status()
    assert status is not None
    assert [info.step for info in status.behind] == [7]
    # Nor does its policy count for the run of another store.
    report = KeepRemote(context_of(second), REMOTES[name], RetentionPolicy(keep_last=1)).apply()
    assert report.dropped == ()
    assert any("whose policy applies to it" in note for note in report.plan.notes)
    assert manifests(objects) == {1, 2}
    shown = CliRunner().invoke(app, ["remote", "prune", name, "--store", str(second.path)])
    assert shown.exit_code == 0
    assert f"the run main is mirrored by the store {first.path}" in shown.output
    assert same(second.load(7), state(7))


def test_a_dead_owner_loses_its_run_and_its_late_pushes_are_not_the_newest(
    tmp_path: Path, bucket: tuple[Double, str], two: tuple[Store, Store]
) -> None:
    objects, name = bucket
    first, second = two
    for step in (1, 2, 3):
        first.save(state(step), step=step)
    all_steps(first)
    assert owner_of(name) == (first.settings.uuid, 1, 3)

    second.save(state(7), step=7)
    objects.now += timedelta(seconds=LIFE_S + 60)
    all_steps(second)
    assert owner_of(name)[:2] == (second.settings.uuid, 2)
    after = second.save(state(8), step=8)
    all_steps(second)
    assert after.sequence > 3

    # The first one was not dead: it finds that, and what it saves stays on its disk.
    first.save(state(4), step=4)
    with pytest.raises(RunIsOwned):
        all_steps(first)
    assert manifests(objects) == {1, 2, 3, 7, 8}
    fresh = Store.init(tmp_path / "fresh", chunk_bytes=MIB)
    assert fresh.pull("main@latest", name).checkpoints[0].step == 8
    check_store(second.path)


def test_a_process_notices_that_another_store_took_over_its_run(
    bucket: tuple[Double, str], two: tuple[Store, Store]
) -> None:
    objects, name = bucket
    first, second = two
    mirror = Mirror(context_of(first))
    first.save(state(1), step=1)
    assert mirror.step()
    second.remotes.take_over(name, "main")
    first.save(state(2), step=2)
    assert not mirror.step()
    assert isinstance(mirror.problem, RunIsOwned)
    assert manifests(objects) == {1}
    first.remotes.take_over(name, "main")
    mirror.try_again()
    assert mirror.step()
    assert manifests(objects) == {1, 2}
    assert owner_of(name)[1] == 3


def test_an_owner_is_renewed_only_for_a_greater_number_or_after_a_while(
    tmp_path: Path, bucket: tuple[Double, str]
) -> None:
    _, name = bucket
    store = mirrored_by(tmp_path / "store", name)
    remote = REMOTES[name]
    now = [0.0]
    own = ownership.Ownership(context_of(store), lambda: now[0])
    writes: list[int] = []

    def asked(sequence: int) -> None:
        own.own(remote, "main", sequence)
        writes.append(owner_of(name)[2])

    for sequence in (5, 3, 6):
        asked(sequence)
    assert writes == [5, 5, 6]
    listed = remote.objects.head(keys.owner("main"))
    asked(6)
    assert remote.objects.head(keys.owner("main")) == listed
    now[0] += LIFE_S / 2
    asked(6)
    assert remote.objects.head(keys.owner("main")) != listed


def test_an_owner_stays_alive_during_the_push_of_a_large_checkpoint(
    bucket: tuple[Double, str], two: tuple[Store, Store]
) -> None:
    objects, name = bucket
    first, second = two
    second.save(state(7), step=7)
    now, refused, one_at_a_time = [0.0], list[bool](), threading.Lock()

    def slow(call: str, key: str) -> None:
        # Each blob takes a third of an owner's life, and the other store tries to take the run in between.
        if call != "put" or not key.startswith(keys.BLOBS):
            return
        with one_at_a_time:
            now[0] += LIFE_S / 3
            objects.now += timedelta(seconds=LIFE_S / 3)
            until_s = time.monotonic() + 20
            while objects.head(keys.owner("main")).modified < objects.now and time.monotonic() < until_s:  # type: ignore[union-attr]
                time.sleep(0.02)
            with pytest.raises(RunIsOwned):
                ownership.Ownership(context_of(second), lambda: now[0]).own(REMOTES[name], "main", 1)
            refused.append(True)

    mirror = Mirror(context_of(first))
    mirror._ownership.clock = lambda: now[0]
    first.save({f"w{number}": bytes([number]) * MIB for number in range(8)}, step=1)
    objects.fault = slow
    assert mirror.step()
    assert len(refused) >= 6
    assert owner_of(name)[:2] == (first.settings.uuid, 1)


def test_without_compare_and_swap_a_run_changes_its_owner_only_on_request(tmp_path: Path) -> None:
    objects, name = new_remote(Store.init(tmp_path / "settings", chunk_bytes=MIB).settings, cas=False)
    first, second = mirrored_by(tmp_path / "first", name), mirrored_by(tmp_path / "second", name)
    first.save(state(1), step=1)
    all_steps(first)
    second.save(state(7), step=7)
    objects.now += timedelta(days=9)
    with pytest.raises(RunIsOwned, match="mirrors the run main") as raised:
        all_steps(second)
    assert "only on request" in raised.value.hint
    second.remotes.take_over(name, "main")
    all_steps(second)
    assert manifests(objects) == {1, 7}
    first.save(state(2), step=2)
    with pytest.raises(RunIsOwned):
        all_steps(first)


def test_a_store_that_gets_a_mirror_late_saves_after_its_checkpoints(tmp_path: Path) -> None:
    """V1: a new node saves once before its mirror is set. Its newest checkpoints must not count as old ones."""
    objects, name = new_remote(Store.init(tmp_path / "settings", chunk_bytes=MIB).settings)
    former = Store.init(tmp_path / "former", chunk_bytes=MIB)
    late = Store.init(tmp_path / "late", chunk_bytes=MIB)
    for store in (former, late):
        store.remotes.add(name, tmp_path / "there")
    former.config.mirror = name
    for step in range(1, 9):
        former.save(state(step), step=step)
    all_steps(former)
    shutil.rmtree(former.path)
    objects.now += timedelta(days=1)

    for step in (23, 24, 25):
        late.save(state(step), step=step)
    late.config.mirror = name
    late.config.keep_local = RetentionPolicy(keep_last=1)
    late.config.keep_remote = RetentionPolicy(keep_last=3)
    all_steps(late)
    for step in (23, 24, 25):
        assert same(late.load(step), state(step))
    for step in (30, 40, 50):
        late.save(state(step), step=step)
        all_steps(late)
    for step in (30, 40, 50):
        assert same(late.load(step), state(step))
    third = Store.init(tmp_path / "third", chunk_bytes=MIB)
    third.remotes.add(name, tmp_path / "there")
    assert third.pull("main@latest", name).checkpoints[0].step == 50
    check_store(late.path)


def test_a_policy_ignores_checkpoints_that_a_new_owner_pushed_during_the_listing(
    bucket: tuple[Double, str], two: tuple[Store, Store]
) -> None:
    objects, name = bucket
    first, second = two
    first.save(state(1), step=1)
    all_steps(first)

    def take_over(call: str, key: str) -> None:
        if call == "list" and key.startswith(keys.CHECKPOINTS):
            objects.fault = lambda _call, _key: None
            second.remotes.take_over(name, "main")
            for step in (7, 8, 9):
                second.save(state(step), step=step)
            all_steps(second)

    objects.fault = take_over
    report = KeepRemote(context_of(first), REMOTES[name], RetentionPolicy(keep_last=1)).apply()

    assert owner_of(name)[0] == second.settings.uuid
    assert report.dropped == ()
    assert manifests(objects) == {1, 7, 8, 9}
    check_store(second.path)


def test_a_policy_keeps_the_newest_pushed_checkpoint_of_its_store_while_a_later_one_waits(
    tmp_path: Path, bucket: tuple[Double, str]
) -> None:
    objects, name = bucket
    owner, other = mirrored_by(tmp_path / "owner", name), mirrored_by(tmp_path / "other", name)
    owner.save(state(1), step=1)
    all_steps(owner)
    assert [info.step for info in owner.evict(1, name).evicted] == [1]
    # A push by hand needs not own the run, and its number may be greater.
    for step in (7, 8, 9):
        other.save(state(step), step=step)
    other.push("main@9", name)
    owner.save(state(2), step=2)

    owner.config.keep_remote = RetentionPolicy(keep_last=1)
    owner.remotes.prune(name)

    assert manifests(objects) == {1, 9}
    assert same(owner.load(1), state(1))
    # When the later one is there, it is the newest of its store.
    all_steps(owner)
    assert manifests(objects) == {2, 9}
    assert [info.step for info in owner.checkpoints()] == [2]
    check_store(owner.path)


def test_a_store_restored_from_a_backup_continues_above_its_pushed_numbers(
    tmp_path: Path, bucket: tuple[Double, str]
) -> None:
    objects, name = bucket
    store = mirrored_by(tmp_path / "store", name)
    store.config.keep_remote = RetentionPolicy(keep_last=3)
    for step in (1, 2):
        store.save(state(step), step=step)
    shutil.copytree(store.path, tmp_path / "backup", symlinks=True)
    for step in range(3, 9):
        store.save(state(step), step=step)
    all_steps(store)
    store.close()
    shutil.rmtree(store.path)
    shutil.move(tmp_path / "backup", store.path)

    with Store.open(store.path) as again:
        saved = []
        for step in (30, 40, 50, 60):
            saved.append(again.save(state(step), step=step))
            all_steps(again)
        assert saved[-1].sequence > 8
        assert {40, 50, 60} <= manifests(objects)
    fresh = Store.init(tmp_path / "fresh", chunk_bytes=MIB)
    assert fresh.pull("main@latest", name).checkpoints[0].step == 60


def test_a_store_restored_from_a_backup_moves_its_tags_on_the_mirror_back(
    tmp_path: Path, bucket: tuple[Double, str]
) -> None:
    objects, name = bucket
    store = mirrored_by(tmp_path / "store", name)
    for step in (1, 2):
        store.save(state(step), step=step)
    store.tag("best", 1)
    all_steps(store)
    shutil.copytree(store.path, tmp_path / "backup", symlinks=True)
    store.save(state(3), step=3)
    store.tag("best", 3)
    all_steps(store)
    store.close()
    shutil.rmtree(store.path)
    shutil.move(tmp_path / "backup", store.path)

    with Store.open(store.path) as again:
        again.save(state(30), step=30)
        all_steps(again)

    assert {tag: place.step for tag, place in read_tags(objects).items()} == {"best": 1}
    check_store(store.path)


def test_a_store_on_this_machine_is_dead_only_if_its_path_can_be_read(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    owner = ownership.Ownership(context_of(store))._new_owner("main")
    assert not really_gone(owner)
    assert not really_gone(replace(owner, boot="another", path=str(tmp_path / "none")))
    assert really_gone(replace(owner, path=str(tmp_path / "none")))
    assert really_gone(replace(owner, store=Store.init(tmp_path / "other").settings.uuid))
    (store.path / "store.json").unlink()
    (store.path / "store.json").symlink_to("elsewhere")
    assert not really_gone(owner)


def test_a_forged_sequence_number_on_the_mirror_is_refused(tmp_path: Path, bucket: tuple[Double, str]) -> None:
    _, name = bucket
    store = mirrored_by(tmp_path / "store", name)
    store.save(state(1), step=1)
    remote: Remote = REMOTES[name]
    ownership.Ownership(context_of(store)).own(remote, "main", 2**50)
    with pytest.raises(RemoteError, match="2\\^32 beyond"):
        all_steps(store)
    assert store.save(state(2), step=2).sequence == 2
