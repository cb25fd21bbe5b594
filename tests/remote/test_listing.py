"""Objects that other programs remove from a remote are noticed, reported with a time, and pushed again if possible."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ckstore import BytesElsewhere, NoSuchRemote, RemoteError, RetentionPolicy, Store
from ckstore.model.sizes import size_text
from ckstore.model.times import time_of_text
from ckstore.ops import mirror_record
from ckstore.remote import keys
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.mirror import mirror_step
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.store import context_of
from tests.remote.double import REMOTES, Double, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import checkpoint_dir, dir_of_id
from tests.support.stores import check_store

pytestmark = pytest.mark.usefixtures("no_mirror_process")


@pytest.fixture
def mirroring(tmp_path: Path) -> tuple[Store, Double, str]:
    """Return a store with three checkpoints that its mirror also has. It keeps the bytes of the newest two."""
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    objects, name = new_remote(store.settings)
    store.remotes.add(name, tmp_path / "place")  # the name leads to the double
    objects.held[keys.INFO] = (tmp_path / "place" / keys.INFO).read_bytes()
    store.config.mirror = name
    store.config.keep_local = RetentionPolicy(keep_last=2)
    for step in (1, 2, 3):
        store.save(state(step), step=step)
    all_steps(store)
    return store, objects, name


def all_steps(store: Store) -> None:
    mirror = Mirror(context_of(store))
    while mirror.step():
        pass
    mirror.tidy()
    while mirror.step():
        pass


def later(monkeypatch: pytest.MonkeyPatch, days: float = 1.0) -> None:
    real = mirror_record.now
    for module in (mirror_record, mirror_step):
        monkeypatch.setattr(module, "now", lambda: real() + timedelta(days=days))


def own_blobs(store: Store, objects: Double, step: int) -> list[str]:
    """Return the keys of the blobs that only one checkpoint has."""
    from tests.support.stores import _parsed

    named = {
        one: {
            keys.blob(blob.digest)
            for blob in _parsed(checkpoint_dir(store.path, "main", one) / "manifest.json")[0].blobs
        }
        for one in (1, 2, 3)
    }
    others = set().union(*(blobs for other, blobs in named.items() if other != step))
    return sorted(key for key in named[step] - others if key in objects.held)


def test_verify_lists_the_remote_and_names_missing_objects(mirroring: tuple[Store, Double, str]) -> None:
    store, objects, name = mirroring
    report = store.verify()
    assert report.ok
    assert [one.step for one in report.elsewhere] == [1]
    assert "listed as of 20" in str(report)

    objects.delete(own_blobs(store, objects, 1)[:1])
    objects.forget_requests()
    report = store.verify()
    assert not report.ok
    assert f"{name}: 1 of" in report.elsewhere[0].missing
    assert "main@1  cannot be fetched" in str(report)
    assert "1 checkpoint cannot be fetched" in str(report)
    assert all(not key.startswith(keys.BLOBS) for key in objects.keys_read)
    assert not store.verify(quick=True).ok


def test_verify_counts_only_what_it_read_as_undamaged(mirroring: tuple[Store, Double, str]) -> None:
    store, objects, name = mirroring
    report = store.verify()
    listed = f"{report.elsewhere[0].as_of[:16].replace('T', ' ')} UTC"
    assert report.whole == ("main@2", "main@3")
    assert str(report).splitlines()[-2:] == [
        f"1 checkpoint is only on a remote: listed as of {listed}, not read",
        f"2 checkpoints, {size_text(report.checked_bytes)} read: no damage",
    ]
    assert str(store.verify(quick=True)).splitlines()[-1] == "2 checkpoints, no data read: no damage"

    store.save(state(4), step=4)
    store.push(4, name)
    store.evict([2, 3, 4], name)
    objects.delete(own_blobs(store, objects, 1)[:1])
    report = store.verify()
    assert report.whole == ()
    assert "no damage" not in str(report)
    assert "3 checkpoints are only on a remote: listed as of" in str(report)
    objects.fault = lambda call, key: "fail" if call == "list" else None
    assert str(store.verify()).splitlines()[-1] == "4 checkpoints are only on a remote: not checked"


def test_verify_distinguishes_checkpoints_of_one_step(mirroring: tuple[Store, Double, str]) -> None:
    store, objects, name = mirroring
    store.tag("old", 3)
    old = store.info(3)
    new = store.save(state(9), step=3, if_exists="replace")
    store.save(state(4), step=4)
    store.push([old.id, new.id, 4], name)
    store.evict([old.id, new.id], name)
    assert store.verify().ok
    objects.delete([key for key in objects.held if new.id in key])
    (away,) = (one for one in store.verify().elsewhere if one.missing)
    assert away.directory == dir_of_id(store.path, "main", 3, new.id).name
    assert "it is missing" in away.missing


def test_verify_reports_a_remote_that_was_not_asked(mirroring: tuple[Store, Double, str]) -> None:
    store, objects, name = mirroring
    objects.fault = lambda call, key: "fail" if call == "list" else None
    report = store.verify()
    assert report.ok
    assert report.elsewhere[0].unasked.startswith(f"{name} was not queried")
    assert "not checked" in str(report)


def test_a_checkpoint_at_another_remote_of_that_name_is_missing(mirroring: tuple[Store, Double, str]) -> None:
    store, objects, name = mirroring
    held, remote = dict(objects.held), REMOTES[name]
    other = new_remote(Store.init(store.path.parent / "other").settings)[0].held[keys.INFO]
    REMOTES[name] = remote
    objects.held[keys.INFO] = other
    assert "another remote now has this name" in store.verify().elsewhere[0].missing
    objects.held[keys.INFO] = held[keys.INFO]
    assert store.verify().ok


def test_the_mirror_lists_once_a_day_and_pushes_missing_checkpoints_again(
    mirroring: tuple[Store, Double, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, objects, name = mirroring
    status = store.mirror_status()
    assert status is not None
    assert status.ok
    assert "it listed them as of" in str(status)
    listed_s = time_of_text(status.looked).timestamp()
    assert (
        f'ckstore_mirror_listed_timestamp_seconds{{remote="{name}",store="{store.path}"}} {listed_s}' in store.metrics()
    )
    lost = own_blobs(store, objects, 3)[:2]
    objects.delete(lost)
    objects.delete([key for key in objects.held if key.startswith(f"{keys.CHECKPOINTS}main/2/")])
    all_steps(store)
    assert lost[0] not in objects.held

    later(monkeypatch)
    all_steps(store)
    assert all(key in objects.held for key in lost)
    assert {event.step for event in store.events() if event.event == "missing"} == {2, 3}
    status = store.mirror_status()
    assert status is not None
    assert status.ok
    fresh = Store.init(store.path.parent / "fresh", chunk_bytes=MIB)
    for step in (2, 3):
        fresh.pull(step, name)
        assert same(fresh.load(step), state(step))
    check_store(store.path)


def test_checkpoints_removed_by_keep_remote_are_not_missing(
    mirroring: tuple[Store, Double, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, objects, _ = mirroring
    store.config.keep_remote = RetentionPolicy(keep_last=1)
    all_steps(store)
    assert {place.step for key in objects.held if (place := keys.place_in(key)) is not None} == {3}
    later(monkeypatch)
    all_steps(store)
    assert {place.step for key in objects.held if (place := keys.place_in(key)) is not None} == {3}
    assert [event.step for event in store.events() if event.event == "missing"] == []
    assert store.verify().ok


def test_lost_checkpoints_are_reported_by_status_doctor_and_metrics(
    mirroring: tuple[Store, Double, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, objects, name = mirroring
    kept = {key: objects.held[key] for key in own_blobs(store, objects, 1)}
    objects.delete(kept)
    later(monkeypatch)
    all_steps(store)
    status = store.mirror_status()
    assert status is not None
    assert not status.ok
    assert status.missing == ("main@1",)
    finding = next(one for one in store.doctor().findings if one.what == "mirror")
    assert finding.level == "warning"
    assert "lacks bytes of 1 checkpoint that this store evicted, such as main@1 (it listed" in finding.found
    assert "has every checkpoint" not in finding.found
    finding = next(one for one in store.doctor().findings if one.what == "elsewhere")
    assert finding.level == "warning"
    assert "lacks bytes of 1 checkpoint, such as main@1" in finding.found
    assert f'ckstore_mirror_missing{{remote="{name}",store="{store.path}"}} 1' in store.metrics()
    with pytest.raises(RemoteError):
        store.load(1)

    # Another store brings the bytes back, and the next listing sees them.
    for key, data in kept.items():
        objects.put(key, data)
    later(monkeypatch)
    all_steps(store)
    status = store.mirror_status()
    assert status is not None
    assert status.ok
    assert same(store.load(1), state(1))


def test_every_statement_about_an_emptied_remote_is_true_and_the_hint_restores_it(
    mirroring: tuple[Store, Double, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, objects, name = mirroring
    store.tag("good", 3)
    all_steps(store)
    store.gc()
    objects.delete([*objects.held])

    report = store.verify()
    assert not report.ok
    assert [one.step for one in report.elsewhere if "there is no remote" in one.missing] == [1]
    acts: list[Callable[[], object]] = [
        lambda: store.remotes.claims(name),
        lambda: store.push(all=True, remote=name),
        lambda: store.evict(2, name),
        lambda: store.pull(1, name),
    ]
    for act in acts:
        with pytest.raises(NoSuchRemote, match="there is no remote") as raised:
            act()
        assert f"ckstore remote add {name} URL" in str(raised.value.hint)
    with pytest.raises(BytesElsewhere, match=f"ckstore remote add {name} URL"):
        store.load(1)
    later(monkeypatch)
    mirror = Mirror(context_of(store))
    mirror.tidy()
    status = store.mirror_status()
    assert status is not None
    assert status.missing == ("main@1",)
    assert [info.step for info in status.behind] == [3, 2]

    # What the hint says: the same name and address. What is here is pushed, and the rest goes on to be named.
    del REMOTES[name]
    (store.path.parent / "place" / keys.INFO).unlink()
    store.remotes.add(name, store.path.parent / "place")
    all_steps(store)
    status = store.mirror_status()
    assert status is not None
    assert (status.missing, status.behind) == (("main@1",), ())
    elsewhere = next(one for one in store.doctor().findings if one.what == "elsewhere")
    assert elsewhere.level == "warning"
    assert "another remote now has the name" in elsewhere.found
    assert not store.verify().ok
    fresh = Store.clone(store.path.parent / "place", store.path.parent / "fresh")
    assert same(fresh.load("good"), state(3))
    assert [info.step for info in fresh.checkpoints()] == [2, 3]
    check_store(store.path)


def test_a_remote_restored_from_before_an_eviction_gets_claims_notes_and_checkpoints_again(
    mirroring: tuple[Store, Double, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, objects, _ = mirroring
    store.config.undo_by_hand_s = 86400.0
    backup = dict(objects.held)
    store.annotate(1, metrics={"loss": 0.5})
    for step in (4, 5):
        store.save(state(step), step=step)
    all_steps(store)
    store.delete(3)
    store.gc()
    assert {info.step for info in store.checkpoints() if info.elsewhere} == {1, 2}
    objects.delete(objects.held.keys() - backup.keys())
    for key, data in backup.items():
        objects.put(key, data)
    assert {claim.place.step for claim in claims_at(objects)} == {1}

    later(monkeypatch)
    all_steps(store)
    # The deleted one can be brought back, so it is claimed as well.
    assert {claim.place.step for claim in claims_at(objects)} == {1, 2, 3}
    assert keys.Place("main", 1, store.info(1).id).annotations in objects.held
    assert {place.step for key in objects.held if (place := keys.place_in(key)) is not None} >= {1, 2, 4, 5}
    status = store.mirror_status()
    assert status is not None
    assert status.ok
    assert store.verify().ok
    store.undo(3)
    for step in range(1, 6):
        assert same(store.load(step), state(step))
    # Nothing is left to do for another look, and nothing is claimed twice.
    later(monkeypatch, days=2)
    before = {claim.uuid for claim in claims_at(objects)}
    all_steps(store)
    assert {claim.uuid for claim in claims_at(objects)} == before
    check_store(store.path)
