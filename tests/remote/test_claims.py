"""An evicted checkpoint stays at the remote while its store needs it, although other stores remove checkpoints."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ckstore import BadInput, CkstoreError, NoSuchRef, RemoteError, RetentionPolicy, Store
from ckstore.model.digest import ALGORITHMS
from ckstore.remote import keys
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.keys import Place
from ckstore.remote.objects import Remote
from ckstore.remote.pruning.keep_remote import KeepRemote, remove_there
from ckstore.remote.pruning.prune import prune
from ckstore.store import context_of
from tests.remote.double import REMOTES, Double, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.s3_server import Service
from tests.support.stores import check_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step in (1, 2, 3):
        made.save(state(step), step=step)
    return made


@pytest.fixture
def away(store: Store) -> tuple[Double, str]:
    """Return a remote that has all checkpoints of the store."""
    objects, name = new_remote(store.settings)
    store.push(remote=name, all=True)
    return objects, name


def place_of_step(store: Store, step: int) -> Place:
    return Place("main", step, store.info(step).id)


def clean(objects: Double, remote: Remote) -> None:
    """Prune until all unreferenced blobs are removed, with a grace period between prunes."""
    for _ in range(3):
        objects.now += timedelta(days=2)
        prune(remote, ALGORITHMS["xxh3_128"], grace_s=3600)


def keep_last(store: Store, name: str, count: int) -> list[str]:
    """Apply `keep_remote` from a store; return the reasons why checkpoints that it does not keep stayed."""
    report = KeepRemote(context_of(store), REMOTES[name], RetentionPolicy(keep_last=count)).apply()
    return [*(one.reason for one in report.skipped), *("; ".join(entry.reasons) for entry in report.plan.kept)]


def manifests(objects: Double) -> set[int]:
    places = (keys.place_in(key) for key in objects.held)
    return {place.step for place in places if place is not None}


@pytest.mark.parametrize("cas", [True, False])
def test_a_store_removes_nothing_that_another_store_relies_on(store: Store, tmp_path: Path, cas: bool) -> None:
    objects, name = new_remote(store.settings, cas=cas)
    store.push(remote=name, all=True)
    store.evict(1, name)
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.pull(3, name)
    other.save(state(9), step=9)
    other.push(9, remote=name)

    reasons = keep_last(other, name, 1)
    for _ in range(3):
        objects.now += timedelta(days=2)
        prune(REMOTES[name], ALGORITHMS["xxh3_128"], grace_s=3600, exclusive=not cas)

    assert manifests(objects) == {1, 9}
    assert any(f"{store.path} on " in reason and "relies on this one" in reason for reason in reasons)
    assert same(store.load(1), state(1))
    # Checkpoint 2 has no claim, and its bytes are gone: the prunes would have removed those of 1, too.
    with pytest.raises(CkstoreError):
        other.pull(2, name)
    check_store(store.path)


def test_the_plan_of_another_store_names_the_store_that_relies_on_a_checkpoint(
    store: Store, tmp_path: Path, away: tuple[Double, str]
) -> None:
    _, name = away
    store.evict(1, name)
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.pull(3, name)
    plan = KeepRemote(context_of(other), REMOTES[name], RetentionPolicy(keep_last=1)).plan()
    assert [entry.info.step for entry in plan.dropped] == [2]
    assert {entry.info.step: entry.protected for entry in plan.kept} == {1: True, 3: True}


def test_a_claim_ends_when_the_bytes_are_restored(store: Store, away: tuple[Double, str]) -> None:
    objects, name = away
    store.evict([1, 2], name)
    assert {claim.place.step for claim in claims_at(objects)} == {1, 2}
    store.pull(1, name)
    assert {claim.place.step for claim in claims_at(objects)} == {2}
    assert remove_there(REMOTES[name], [place_of_step(store, 1)]) == ([], {})
    assert same(store.load(1), state(1))


def test_a_deleted_checkpoint_stays_at_the_remote_while_it_can_be_restored(
    store: Store, away: tuple[Double, str]
) -> None:
    objects, name = away
    store.config.undo_by_hand_s = 3600
    store.evict(1, name)
    store.delete(1)
    reasons = keep_last(store, name, 1)
    assert manifests(objects) == {1, 3}
    assert any("this store evicted its own copy and relies on this one" in reason for reason in reasons)
    clean(objects, REMOTES[name])

    store.undo("main@1")
    assert same(store.load(1), state(1))

    store.delete(1, now=True)
    keep_last(store, name, 1)
    assert manifests(objects) == {3}
    with pytest.raises(NoSuchRef):
        store.load(1)


def test_keep_remote_removes_a_checkpoint_that_only_this_store_relied_on(
    store: Store, away: tuple[Double, str]
) -> None:
    objects, name = away
    store.evict([1, 2], name)
    keep_last(store, name, 1)
    assert manifests(objects) == {3}
    assert claims_at(objects) == []
    assert [info.step for info in store.checkpoints()] == [3]
    check_store(store.path)


@pytest.mark.parametrize("when", ["claim", "look"])
def test_a_removal_during_an_eviction_loses_nothing(store: Store, away: tuple[Double, str], when: str) -> None:
    objects, name = away
    place = place_of_step(store, 1)
    done: list[str] = []

    def meanwhile(call: str, key: str) -> None:
        # Before the claim is written, or right after it: then the removal sees it.
        begins = call == "put" and key.startswith(keys.CLAIMS)
        looks = call == "head" and key == place.dropped
        if not done and (begins if when == "claim" else looks):
            done.append(key)
            remove_there(REMOTES[name], [place])

    objects.fault = meanwhile
    report = store.evict(1, name)
    assert done
    assert [info.step for info in report.evicted] == []
    assert (place.manifest in objects.held) == (when == "look")
    clean(objects, REMOTES[name])
    assert same(store.load(1), state(1))
    assert claims_at(objects) == []
    check_store(store.path)


def test_a_removal_finds_a_claim_that_was_written_after_its_first_check(
    store: Store, tmp_path: Path, away: tuple[Double, str]
) -> None:
    objects, name = away
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.pull([1, 2, 3], name)
    evicted: list[int] = []

    def meanwhile(call: str, key: str) -> None:
        if not evicted and call == "put" and key == place_of_step(store, 1).dropped:
            evicted.extend(info.step for info in store.evict(1, name).evicted)

    objects.fault = meanwhile
    reasons = keep_last(other, name, 1)
    objects.fault = lambda _call, _key: None
    assert evicted == [1]
    assert any("relies on this one" in reason for reason in reasons)
    clean(objects, REMOTES[name])
    assert same(store.load(1), state(1))
    # It is marked and claimed: it exists.
    assert place_of_step(store, 1).dropped in objects.held
    third = Store.init(tmp_path / "third", chunk_bytes=MIB)
    assert [info.step for info in third.pull(1, name).checkpoints] == [1]


def test_a_claim_keeps_the_blobs_of_a_manifest_that_a_late_removal_hit(store: Store, away: tuple[Double, str]) -> None:
    objects, name = away
    store.evict(1, name)
    objects.delete([place_of_step(store, 1).manifest])
    clean(objects, REMOTES[name])
    assert same(store.load(1), state(1))

    claim = next(key for key in objects.held if key.startswith(keys.CLAIMS))
    objects.put(claim, b"{}")
    with pytest.raises(RemoteError, match="claims/"):
        clean(objects, REMOTES[name])


def test_an_unreadable_claim_counts_and_blocks_nothing_else(
    store: Store, tmp_path: Path, away: tuple[Double, str]
) -> None:
    objects, name = away
    store.evict(1, name)
    objects.put(next(key for key in objects.held if key.startswith(keys.CLAIMS)), b"{}")
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.pull(3, name)

    reasons = keep_last(other, name, 1)
    assert manifests(objects) == {1, 3}
    assert any(f"the store ({store.settings.uuid}) evicted its own copy" in reason for reason in reasons)
    (claims,) = other.remotes.claims(name)
    assert (claims.host, claims.path) == ("", "")
    assert same(store.load(1), state(1))


@pytest.mark.parametrize("after", ["elsewhere.json", "the claim", "the look"])
def test_an_eviction_that_is_killed_leaves_a_checkpoint_that_reads(
    store: Store, away: tuple[Double, str], after: str
) -> None:
    objects, name = away
    place = place_of_step(store, 1)
    until: dict[str, Callable[[str, str], bool]] = {
        "elsewhere.json": lambda call, key: call == "put" and key.startswith(keys.CLAIMS),
        "the claim": lambda call, key: call == "head" and key == place.manifest,
        "the look": lambda call, key: call == "head" and key.startswith(keys.BLOBS),
    }
    kept = dict(objects.held)

    def die(call: str, key: str) -> None:
        if until[after](call, key):
            os._exit(7)

    objects.fault = die
    child = os.fork()
    if child == 0:
        try:
            store.evict(1, name)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    objects.fault = lambda _call, _key: None
    assert objects.held == kept  # those of the child are its own: its claim is lost with it

    with Store.open(store.path) as again:
        assert same(again.load(1), state(1))
        assert [info.step for info in again.evict(1, name).evicted] == [1]
        assert same(again.load(1), state(1))
    check_store(store.path)


def test_an_eviction_that_the_remote_refuses_leaves_no_claim(store: Store, away: tuple[Double, str]) -> None:
    objects, name = away
    blob = next(key for key in sorted(objects.held) if key.startswith(keys.BLOBS))
    objects.delete([blob])
    skipped = store.evict([1, 2, 3], name).skipped
    assert skipped
    assert all("does not have blob" in one.reason for one in skipped)
    gone = {one.info.step for one in skipped}
    assert {claim.place.step for claim in claims_at(objects)} == {1, 2, 3} - gone
    for step in gone:
        assert not store.info(step).elsewhere
        assert not list(store.path.glob(f"checkpoints/main/{step}.*/elsewhere.json"))


def test_a_user_can_release_the_claims_of_a_store_that_no_longer_exists(
    store: Store, tmp_path: Path, away: tuple[Double, str]
) -> None:
    objects, name = away
    store.evict([1, 2], name)
    uuid, path = store.settings.uuid, store.path
    other = Store.init(tmp_path / "other", chunk_bytes=MIB)
    other.pull(3, name)
    shutil.rmtree(path)

    (claims,) = other.remotes.claims(name)
    assert (claims.store, claims.path, claims.is_own) == (uuid, str(path), False)
    assert {ref.partition(".")[0] for ref in claims.checkpoints} == {"main@1", "main@2"}
    keep_last(other, name, 1)
    assert manifests(objects) == {1, 2, 3}

    assert len(other.remotes.release(name, uuid).checkpoints) == 2
    assert other.remotes.claims(name) == ()
    keep_last(other, name, 1)
    assert manifests(objects) == {3}
    with pytest.raises(BadInput, match="has no claim"):
        other.remotes.release(name, uuid)


def test_a_store_does_not_release_its_own_claims(store: Store, away: tuple[Double, str]) -> None:
    _, name = away
    store.evict(1, name)
    with pytest.raises(BadInput, match="this store"):
        store.remotes.release(name, store.settings.uuid)
    assert store.remotes.claims(name)[0].is_own


def test_a_tag_from_a_remote_follows_the_remote_unless_it_was_moved_locally(
    store: Store, tmp_path: Path, service: Service
) -> None:
    target = service.target("tags")
    store.remotes.add("cloud", target.address, endpoint=target.endpoint, region=target.region)
    store.tag("best", 1)
    store.tag("mine", 1)
    store.push(remote="cloud", all=True)
    clone = Store.clone(target.address, tmp_path / "clone", endpoint=target.endpoint, region=target.region)
    clone.tag("mine", 3)
    store.tag("best", 2)
    store.tag("mine", 2)
    store.push(2, remote="cloud")

    report = clone.pull(2, "origin")
    assert any("the tag mine names main@3" in warning for warning in report.warnings)
    assert clone.info("best").step == 2
    assert clone.info("mine").step == 3
    check_store(clone.path)
