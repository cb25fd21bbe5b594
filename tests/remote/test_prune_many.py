"""A prune of many unreferenced blobs: one listing a call, few requests, and a bounded `condemned.json`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ckstore import RemoteError, Store
from ckstore.model.digest import ALGORITHMS
from ckstore.model.seal import seal
from ckstore.remote import key_lookup, keys
from ckstore.remote.documents.condemned_names import (
    BATCH_NAMES,
    Batch,
    CondemnedNames,
    read_condemned,
    read_versioned,
    swap,
)
from ckstore.remote.objects import Remote
from ckstore.remote.pruning import prune as module
from ckstore.remote.pruning.prune import prune
from ckstore.remote.service.engine import ServiceObjects
from tests.remote.double import REMOTES, Double, Fault, new_remote
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.requirements import CRASH_FULL
from tests.support.s3_server import Service
from tests.support.stores import check_store

XXH3 = ALGORITHMS["xxh3_128"]
DAY_S = 86_400.0
_LATER = [0.0]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the server's clock by `_LATER`, as pruners see it."""
    _LATER[0] = 0.0
    real = key_lookup.server_time
    monkeypatch.setattr(key_lookup, "server_time", lambda objects: real(objects) + timedelta(seconds=_LATER[0]))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with one checkpoint."""
    made = Store.init(tmp_path / "store", chunk_bytes=2**20)
    made.save({"x": b"needed" * 5000}, step=1)
    return made


@pytest.fixture
def double(store: Store) -> Double:
    """Return a remote in memory, named ``away``, that has the checkpoint."""
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    return objects


def dead(count: int) -> list[str]:
    """Return names of unreferenced blobs."""
    return [f"xxh3-{number * 7919 % 2**32:08x}{'0' * 24}" for number in range(1, count + 1)]


def pruned(remote: Remote | str = "away", *, days: float = 0.0) -> Any:
    """Prune the given number of days later."""
    _LATER[0] += days * DAY_S
    return prune(REMOTES[remote] if isinstance(remote, str) else remote, XXH3, grace_s=DAY_S)


def condemned(double: Double, names: list[str]) -> None:
    """Return blobs that a remote has and that have been marked for two days."""
    for name in names:
        double.put(keys.blob(name), b"dead")
    swap(double, CondemnedNames(dict.fromkeys(names, "2026-01-01T00:00:00.000000Z")), None)
    double.now += timedelta(days=2)


@pytest.mark.parametrize(
    "count, batch",
    [
        (5_000, 1_000),
        pytest.param(100_000, BATCH_NAMES, marks=pytest.mark.skipif(not CRASH_FULL, reason="takes several seconds")),
    ],
)
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_many_dead_blobs_are_deleted_by_one_prune(
    store: Store, service: Service, monkeypatch: pytest.MonkeyPatch, count: int, batch: int
) -> None:
    monkeypatch.setattr(module, "BATCH_NAMES", batch)
    target = service.target("run")
    store.remotes.add("cold", target.address, endpoint=target.endpoint)
    store.push(1, "cold")
    for name in dead(count):
        service.objects[f"run/{keys.blob(name)}"] = (b"dead", '"1"', datetime.now(UTC))
    remote = Remote("cold", ServiceObjects(target))
    found = pruned(remote, days=2)
    service.requests.clear()
    report = pruned(remote, days=2)
    removals = service.requests.pop("POST")
    others = sum(service.requests.values())

    assert (found.removed_count, found.condemned_count) == (0, count)
    assert (report.removed_count, report.condemned_count) == (count, 0)
    assert removals == -(-count // module.REQUEST_NAMES) + 1  # the object by which the clock was read
    # A page for each thousand and one for the needed blob, a swap for each batch and one more; ten whatever the number.
    assert others <= count // 1000 + 1 + count // batch + 1 + 10
    assert others <= 1.2 * count / 1000 or count < 100_000
    assert read_condemned(remote.objects) == CondemnedNames()
    with Store.clone(target.address, store.path.parent / "other", endpoint=target.endpoint) as other:
        other.pull(1)
        assert other.load(1) == store.load(1)
        check_store(other.path)


def test_blobs_are_listed_once_and_the_rest_again_only_after_a_lost_swap(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_NAMES", 10)
    names = dead(40)
    condemned(double, names)
    lists: Counter[str] = Counter()
    batches: list[int] = []

    def watch(call: str, key: str) -> Fault | None:
        lists[key] += call == "list"
        if call == "update" and key == keys.CONDEMNED:
            batches.append(1)
            if len(batches) == 3:  # a push that needs none of these changes the object
                said, version = read_versioned(double)
                said.condemned.pop(names[-1], None)
                double.put(key, _bytes(said)) if version else None
        return None

    double.fault = watch
    report = pruned(days=4)

    assert report.removed_count == 39
    assert lists[keys.BLOBS] == 1
    assert lists[keys.INTENTS] == lists[keys.CHECKPOINTS] == 2


def test_a_push_that_unmarks_a_blob_between_two_batches_keeps_it(
    store: Store, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its intent is newer than the lists, so the pruner can only notice it by the version of `condemned.json`."""
    monkeypatch.setattr(module, "BATCH_NAMES", 1)
    store.save({"x": b"pushed between two batches" * 1000}, step=2)
    blobs = [*blobs_dir(store.path, "main", 2).iterdir()]
    for blob in blobs:
        double.put(keys.blob(blob.name), blob.read_bytes())
    last = f"xxh3-{'f' * 32}"
    condemned(double, [f"xxh3-{'0' * 32}", last])
    said, version = read_versioned(double)
    said.condemned.update(dict.fromkeys((blob.name for blob in blobs), "2026-01-01T00:00:00.000000Z"))
    assert swap(double, said, version) is not None
    real = double.delete
    pushed: list[str] = []

    def delete(gone: Any) -> None:
        gone = list(gone)
        if not pushed and any(key.startswith(keys.BLOBS) for key in gone):
            pushed.append(gone[0])
            store.push(2, "away")
        real(gone)

    monkeypatch.setattr(double, "delete", delete)
    pruned(days=4)

    assert pushed == [keys.blob(f"xxh3-{'0' * 32}")]
    assert all(keys.blob(blob.name) in double.held for blob in blobs)
    assert keys.blob(last) not in double.held
    assert read_condemned(double) == CondemnedNames()


def test_only_unacknowledged_names_of_a_failed_batch_are_retired(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_NAMES", 2)
    names = sorted(dead(6))
    condemned(double, names)
    real = double.delete

    def lose(gone: Any) -> None:
        gone = list(gone)
        real(gone)
        if keys.blob(names[2]) in gone:
            raise RemoteError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(double, "delete", lose)
        with pytest.raises(RemoteError, match="the answer was lost"):
            pruned(days=4)

    assert read_condemned(double) == CondemnedNames(retired_names={names[2]: 1, names[3]: 1})
    assert [name for name in names if keys.blob(name) in double.held] == names[4:]
    pruned(days=2)
    assert pruned(days=2).removed_count == 2
    assert not [name for name in names if keys.blob(name) in double.held]


def test_a_finished_batch_is_removed_when_a_later_request_fails(
    double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_NAMES", 2)
    names = sorted(dead(4))
    condemned(double, names)
    swaps: list[str] = []

    def fail(call: str, key: str) -> Fault | None:
        if call == "update" and key == keys.CONDEMNED:
            swaps.append(key)
            return "fail" if len(swaps) == 2 else None
        return None

    double.fault = fail
    with pytest.raises(RemoteError, match="failed: 503"):
        pruned(days=4)

    said = read_condemned(double)
    assert (said.deleting, said.retired_names) == ({}, {})
    assert [*said.condemned] == names[2:]


def test_the_number_of_marked_blobs_is_limited(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONDEMNED", 10)
    for name in dead(25):
        double.put(keys.blob(name), b"dead")
    counts = []
    for _ in range(4):
        report = pruned(days=2)
        assert report.condemned_count == len(read_condemned(double).condemned)
        counts.append((report.removed_count, report.condemned_count, report.uncondemned_count))

    assert counts == [(0, 10, 15), (10, 10, 5), (10, 5, 0), (5, 0, 0)]


def test_a_dry_run_reports_the_blobs_to_mark(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CONDEMNED", 10)
    for name in dead(25):
        double.put(keys.blob(name), b"dead")
    report = prune(REMOTES["away"], XXH3, grace_s=0, dry_run=True)

    assert (report.removed_count, report.condemned_count, report.uncondemned_count) == (0, 10, 15)
    assert str(report).endswith("; 15 more unreferenced blobs will be marked by later calls")


def test_no_batch_begins_whose_names_could_not_be_retired(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BURNT", 10)
    names = sorted(dead(4))
    condemned(double, names)
    said, version = read_versioned(double)
    said.retired_names.update({f"xxh3-{number:032x}": 1 for number in range(5)})
    said.deleting["0" * 32] = Batch((f"xxh3-{'e' * 32}", f"xxh3-{'f' * 32}"), "2026-12-31T00:00:00.000000Z")
    swap(double, said, version)
    before = double.held[keys.CONDEMNED]
    with pytest.raises(RemoteError, match="so pruning stopped"):
        pruned(days=4)

    assert double.held[keys.CONDEMNED] == before
    assert all(keys.blob(name) in double.held for name in names)


def _bytes(said: CondemnedNames) -> bytes:
    said.change = "1" * 32
    return seal(said.render())
