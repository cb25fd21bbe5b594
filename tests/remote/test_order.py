"""The order of the requests of a push and a pruner, on which the proof in docs/format/remote-v1.md relies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from ckstore import RemoteError, Store
from ckstore.model.digest import ALGORITHMS
from ckstore.remote import keys
from ckstore.remote.intents import LIFE_S, Intent
from ckstore.remote.objects import ObjectEntry
from ckstore.remote.pruning.keep_remote import remove_there
from ckstore.remote.pruning.prune import prune
from ckstore.remote.source import ObjectSource
from tests.remote.double import REMOTES, Double, Fault, new_remote


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=2**20)
    made.save({"x": b"x" * 5000}, step=1)
    return made


def _told(objects: Double) -> list[tuple[str, str]]:
    """Return a list that records each call with the first part of its key."""
    told: list[tuple[str, str]] = []

    def add(call: str, key: str) -> Fault | None:
        told.append((call, key.partition("/")[0]))
        return None

    objects.fault = add
    return told


def test_a_push_writes_its_intent_before_it_checks_the_remote(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    told = _told(objects)
    store.push(1, remote)

    # By its version, as what changes it reads it: the plan before only looks which names count.
    intent, condemned = told.index(("put", "intents")), told.index(("head", keys.CONDEMNED))
    sent, committed = told.index(("put", "blobs")), told.index(("update", "intents"))
    manifest, removed = told.index(("put", "checkpoints")), told.index(("delete", "intents"))
    assert intent < condemned < sent < committed < manifest < removed


def test_a_push_checks_all_blobs_again_before_it_publishes(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    put = objects.put

    def lose(key: str, data: bytes | memoryview) -> object:
        written = put(key, data)
        if key.startswith(keys.BLOBS):
            objects.held.pop(key)
        return written

    objects.put = lose  # type: ignore[assignment, method-assign]
    with pytest.raises(RemoteError, match="are missing on"):
        store.push(1, remote)
    assert not [key for key in objects.held if key.startswith(keys.CHECKPOINTS)]


def test_a_pruner_reads_its_version_then_intents_then_checkpoints(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    objects.put(keys.blob(f"xxh3-{'0' * 32}"), b"x")
    told = _told(objects)
    for _ in range(2):
        told.clear()
        prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=0)
    version, intents = told.index(("head", keys.CONDEMNED)), told.index(("list", "intents"))
    places, blobs = told.index(("list", "checkpoints")), told.index(("list", "blobs"))
    assert version < intents < places < blobs


def test_a_committed_push_of_a_removed_checkpoint_is_not_finished(store: Store) -> None:
    """The committed intent of a push does not restore its checkpoint if a user has removed it since."""
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    place = keys.Place(info.run, info.step, info.id)
    manifest = objects.held[place.manifest]
    intent = Intent.of([place], [], lambda: 0.0)
    intent.write(objects)
    intent.commit(objects, [manifest])
    objects.put(place.dropped, b"{}")
    objects.delete([place.manifest])
    calls: list[str] = []
    objects.fault = lambda call, key: calls.append(call) if key == place.manifest else None
    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=0)

    assert place.manifest not in objects.held
    # Nor for a moment: the same prune takes away what is left of a removal, and a client could pull it before.
    assert set(calls) <= {"head", "delete"}


def test_an_intent_renewed_since_it_was_listed_is_not_voided(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    now_s = [0.0]
    intent = Intent.of([keys.Place("main", 1, f"xxh3-{'0' * 32}")], [], lambda: now_s[0])
    intent.write(objects)
    objects.now += timedelta(hours=2)
    real = objects.list

    def renew(prefix: str) -> Iterator[ObjectEntry]:
        found = [*real(prefix)]
        if prefix == keys.INTENTS and not now_s[0]:
            now_s[0] = LIFE_S / 3
            intent.renew(objects, cas=True)
        return iter(found)

    objects.list = renew  # type: ignore[method-assign]
    report = prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60)

    assert now_s[0]
    assert report.voided_count == 0
    assert b"uploading" in objects.held[intent.key]


def test_a_committed_intent_is_not_renewed(store: Store) -> None:
    """After a renewal it could become stale, and a pruner would void a push that is writing its manifests."""
    objects, _ = new_remote(store.settings)
    now_s = [0.0]
    intent = Intent.of([keys.Place("main", 1, f"xxh3-{'0' * 32}")], [], lambda: now_s[0])
    intent.write(objects)
    intent.commit(objects, [b"{}"])
    now_s[0] = LIFE_S / 3
    intent.renew(objects, cas=True)
    now_s[0] = LIFE_S
    intent.renew(objects, cas=True)

    assert b'"committing"' in objects.held[intent.key]


def test_a_removal_writes_its_mark_before_it_deletes_the_manifest(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    place = keys.Place(info.run, info.step, info.id)
    objects.fault = lambda call, key: "fail" if call == "delete" else None
    assert remove_there(REMOTES[remote], [place])[1].keys() == {place}

    # A client that lost its connection here has removed it anyway.
    assert ObjectSource(objects, remote).places() == []


def _half_removed(store: Store, objects: Double, remote: str, after: int) -> keys.Place:
    """Return an encoded checkpoint with annotations whose removal was interrupted after some requests."""
    info = store.push(1, remote).checkpoints[0]
    place = keys.Place(info.run, info.step, info.id)
    for key in (place.plain, place.annotations):
        objects.put(key, b"{}")
    made: list[str] = []

    def cut(call: str, _: str) -> Fault | None:
        made.append(call)
        return "fail" if len(made) > after else None

    objects.fault = cut
    with suppress(RemoteError):
        remove_there(REMOTES[remote], [place])
    assert len(made) == max(2, min(after + 1, 5))
    objects.fault = lambda _call, _key: None
    return place


def _of(objects: Double, place: keys.Place) -> set[str]:
    return {key for key in objects.held if keys.place_in(key, keys.OF_PLACE) == place}


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("cas", [True, False])
def test_an_interrupted_removal_is_finished_by_the_next_prune(store: Store, after: int, cas: bool) -> None:
    objects, remote = new_remote(store.settings, cas=cas)
    place = _half_removed(store, objects, remote, after)
    all_of_it = {place.manifest, place.plain, place.annotations}
    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60, dry_run=True, exclusive=not cas)
    assert _of(objects, place) != {place.dropped} or after == 5

    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60, exclusive=not cas)

    # Before the mark nothing has happened to it.
    assert _of(objects, place) == ({place.dropped} if after else all_of_it)


def test_a_checkpoint_being_pushed_again_is_not_removed_with_earlier_leftovers(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    place = _half_removed(store, objects, remote, 3)
    Intent.of([place], [], lambda: 0.0).write(objects)
    wanted = _of(objects, place)

    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60)

    assert _of(objects, place) == wanted


def test_a_checkpoint_pushed_again_after_the_pruners_listing_is_not_removed(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    place = _half_removed(store, objects, remote, 3)
    listed: list[str] = []

    def push_meanwhile(call: str, key: str) -> Fault | None:
        listed.extend([key] if (call, key) == ("list", keys.INTENTS) else [])
        if len(listed) == 2:
            objects.fault = lambda _call, _key: None
            store.push(1, remote)
        return None

    objects.fault = push_meanwhile
    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60)

    assert len(listed) == 2
    assert ObjectSource(objects, remote).places() == [place]
