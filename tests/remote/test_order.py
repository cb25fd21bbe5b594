"""In which order a push and a pruner ask: what the proof of docs/format/remote-v1.md rests on."""

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
    """Return the list to which each call is added with the first part of its key."""
    told: list[tuple[str, str]] = []

    def add(call: str, key: str) -> Fault | None:
        told.append((call, key.partition("/")[0]))
        return None

    objects.fault = add
    return told


def test_a_push_writes_its_intent_and_then_looks(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    told = _told(objects)
    store.push(1, remote)

    # By its version, as what changes it reads it: the plan before only looks which names count.
    intent, condemned = told.index(("put", "intents")), told.index(("head", keys.CONDEMNED))
    sent, committed = told.index(("put", "blobs")), told.index(("update", "intents"))
    manifest, removed = told.index(("put", "checkpoints")), told.index(("delete", "intents"))
    assert intent < condemned < sent < committed < manifest < removed


def test_a_push_looks_again_before_it_says_that_all_is_there(store: Store) -> None:
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


def test_a_pruner_looks_at_intents_before_checkpoints_and_reads_its_version_before_both(store: Store) -> None:
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


def test_a_push_that_was_asked_for_by_a_pruner_is_not_finished_where_it_was_removed(store: Store) -> None:
    """The intent of a push that had committed, whose checkpoint a user has removed since, brings nothing back."""
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


def test_an_intent_that_was_renewed_since_it_was_listed_is_not_taken_away(store: Store) -> None:
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


def test_an_intent_that_has_committed_is_not_renewed(store: Store) -> None:
    """A renewal would make it stale one day, and a pruner would void a push whose manifests are on their way."""
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


def test_what_is_removed_is_marked_before_its_manifest_goes(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    place = keys.Place(info.run, info.step, info.id)
    objects.fault = lambda call, key: "fail" if call == "delete" else None
    assert remove_there(REMOTES[remote], [place])[1].keys() == {place}

    # A client that lost its connection here has removed it anyway.
    assert ObjectSource(objects, remote).places() == []


def _half_removed(store: Store, objects: Double, remote: str, after: int) -> keys.Place:
    """Return an encoded checkpoint with annotations whose removal was cut off after so many requests."""
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
def test_a_removal_that_was_cut_off_is_finished_by_the_next_prune(store: Store, after: int, cas: bool) -> None:
    objects, remote = new_remote(store.settings, cas=cas)
    place = _half_removed(store, objects, remote, after)
    all_of_it = {place.manifest, place.plain, place.annotations}
    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60, dry_run=True, exclusive=not cas)
    assert _of(objects, place) != {place.dropped} or after == 5

    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60, exclusive=not cas)

    # Before the mark nothing has happened to it.
    assert _of(objects, place) == ({place.dropped} if after else all_of_it)


def test_what_is_being_pushed_again_is_not_removed_with_what_an_earlier_removal_left(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    place = _half_removed(store, objects, remote, 3)
    Intent.of([place], [], lambda: 0.0).write(objects)
    wanted = _of(objects, place)

    prune(REMOTES[remote], ALGORITHMS["xxh3_128"], grace_s=60)

    assert _of(objects, place) == wanted


def test_what_was_pushed_again_since_the_pruner_looked_is_not_removed(store: Store) -> None:
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
