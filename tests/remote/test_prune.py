"""Pruning a remote deletes unreferenced blobs during pushes, and never blobs that a checkpoint or a push needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ckstore import BadInput, CkstoreError, InUse, RemoteError, Store
from ckstore.model.digest import ALGORITHMS
from ckstore.remote import key_lookup, keys
from ckstore.remote.documents.condemned_names import TRIES, Batch, CondemnedNames, read_condemned, swap
from ckstore.remote.intents import Intent, VoidIntent
from ckstore.remote.keys import Place
from ckstore.remote.objects import Remote
from ckstore.remote.pruning import prune as module
from ckstore.remote.pruning.prune import prune
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.support.checkpoint_dirs import blobs_dir

XXH3 = ALGORITHMS["xxh3_128"]
A, B = (XXH3.digest(data) for data in (b"a", b"b"))
DAY_S = 86_400.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that moves the server's clock forward, as pruners see it."""
    shift = [0.0]
    monkeypatch.setattr(key_lookup, "server_time", lambda _: datetime.now(UTC) + timedelta(seconds=shift[0]))

    def forward(seconds: float) -> None:
        shift[0] += seconds

    return forward


@pytest.fixture
def objects(memory: Target) -> ServiceObjects:
    """Return the objects of a remote in memory."""
    return ServiceObjects(memory)


@pytest.fixture
def store(tmp_path: Path, memory: Target) -> Store:
    """Return a store with that remote, which has two checkpoints."""
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    store.remotes.add("cold", memory.address)
    for step in (1, 2):
        store.save({"x": bytes([step]) * 2**21, "y": b"same" * 5000}, step=step)  # x is a blob of its own
    store.push(all=True)
    return store


def pruned(objects: ServiceObjects, grace_s: float = DAY_S, *, cas: bool = True, **how: bool) -> Any:
    return prune(Remote("cold", objects, cas=cas), XXH3, grace_s=grace_s, **how)


def blobs(objects: ServiceObjects) -> set[str]:
    return {str(keys.blob_in(one.key)) for one in objects.list(keys.BLOBS)}


def drop(objects: ServiceObjects, store: Store, step: int) -> None:
    """Remove a checkpoint from the remote."""
    info = store.info(step)
    place = Place(info.run, info.step, info.id)
    objects.put(place.dropped, b"{}")
    objects.delete([place.manifest])


def test_blobs_of_checkpoints_are_kept(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None], tmp_path: Path
) -> None:
    before = blobs(objects)
    clock(10 * DAY_S)
    report = pruned(objects)

    assert (report.removed_count, report.condemned_count, report.blob_count) == (0, 0, len(before))
    assert blobs(objects) == before


def test_an_unreferenced_blob_is_marked_and_then_deleted(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None], tmp_path: Path
) -> None:
    before = blobs(objects)
    drop(objects, store, 1)
    young = pruned(objects)
    clock(1.5 * DAY_S)
    first = pruned(objects)
    again = pruned(objects)
    clock(1.5 * DAY_S)
    last = pruned(objects)
    other = Store.init(tmp_path / "other")
    other.remotes.add("cold", store.remotes.get("cold").target.address)
    other.pull(2)

    assert (young.removed_count, young.condemned_count) == (0, 0)
    assert (first.removed_count, first.condemned_count) == (0, 1)
    assert (again.removed_count, again.condemned_count) == (0, 1)
    assert (last.removed_count, last.condemned_count) == (1, 0)
    assert len(blobs(objects)) == len(before) - 1
    assert other.load(2) == store.load(2)
    assert read_condemned(objects) == CondemnedNames()


def test_a_prune_may_take_more_batches_than_it_may_lose_swaps(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_NAMES", 1)
    before = blobs(objects)
    dead_count = TRIES + 5
    for number in range(dead_count):
        objects.put(keys.blob(f"xxh3-{number:032x}"), b"dead")
    clock(1.5 * DAY_S)
    pruned(objects)
    clock(1.5 * DAY_S)

    assert pruned(objects).removed_count == dead_count
    assert blobs(objects) == before


def test_a_dry_run_changes_nothing(store: Store, objects: ServiceObjects, clock: Callable[[float], None]) -> None:
    drop(objects, store, 1)
    before = list(objects.list(""))

    assert pruned(objects, 0, dry_run=True).condemned_count == 1
    assert list(objects.list("")) == before


def test_blobs_of_a_push_in_progress_are_kept(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None]
) -> None:
    objects.put(keys.blob(A), b"a")
    objects.put(keys.blob(B), b"b")
    intent = Intent.of([Place("main", 9, A)], [A], lambda: 0.0)
    intent.write(objects)
    pruned(objects, 0)

    assert A in blobs(objects)
    assert B not in blobs(objects)


def test_a_push_that_was_suspended_too_long_finds_its_intent_void(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None]
) -> None:
    objects.put(keys.blob(A), b"a")
    intent = Intent.of([Place("main", 9, A)], [A], lambda: 0.0)
    intent.write(objects)
    clock(2 * DAY_S)
    report = pruned(objects, 60)

    assert report.voided_count == 1
    with pytest.raises(VoidIntent):
        intent.commit(objects, [b"{}"])
    clock(2 * DAY_S)
    pruned(objects, 60)
    assert A not in blobs(objects)
    assert list(objects.list(keys.INTENTS)) == []


def test_a_push_that_stopped_before_its_manifest_is_finished(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None]
) -> None:
    info = store.info(1)
    place = Place(info.run, info.step, info.id)
    manifest = objects.get(place.manifest, 10**6) or b""
    objects.delete([place.manifest])
    intent = Intent.of([place], [name.partition(".")[0] for name in blobs(objects)], lambda: 0.0)
    intent.write(objects)
    intent.commit(objects, [manifest])
    pruned(objects, 60)
    young = objects.get(place.manifest, 10**6)
    clock(2 * DAY_S)
    report = pruned(objects, 60)

    assert young is None
    assert report.finished_count == 1
    assert objects.get(place.manifest, 10**6) == manifest
    assert list(objects.list(keys.INTENTS)) == []
    assert pruned(objects, 60).removed_count == 0


def test_a_name_whose_deletion_was_not_acknowledged_is_retired(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.put(keys.blob(A), b"a")
    real = objects.delete

    def lose(gone: Any) -> None:
        gone = list(gone)
        if keys.blob(A) in gone:
            raise RemoteError("the answer was lost")
        real(gone)

    with monkeypatch.context() as patch:
        patch.setattr(objects, "delete", lose)
        with pytest.raises(RemoteError, match="the answer was lost"):
            pruned(objects, 0)
    said = read_condemned(objects)
    report = pruned(objects, 0)

    assert said == CondemnedNames(retired_names={A: 1})
    assert report.removed_count == 1
    assert A not in blobs(objects)
    assert read_condemned(objects).retired_names == {A: 1}


def test_the_names_of_a_dead_pruners_batch_are_retired(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None]
) -> None:
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    swap(objects, CondemnedNames(deleting={"0" * 32: Batch((A,), since)}), None)
    objects.put(keys.blob(A), b"a")
    pruned(objects)
    waiting = read_condemned(objects)
    clock(2 * DAY_S)
    pruned(objects)

    assert waiting.deleting
    assert read_condemned(objects) == CondemnedNames(retired_names={A: 1})
    pruned(objects)
    assert A not in blobs(objects)


def test_a_push_that_unmarks_a_blob_during_a_prune_keeps_it(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save({"x": b"new" * 5000}, step=3)
    digests = sorted(set(_blobs_of(store, 3)))
    for digest in digests:
        objects.put(keys.blob(digest), (blobs_dir(store.path, "main", 3) / digest).read_bytes())
    real = objects.list
    done: list[bool] = []

    def push_after_intents(prefix: str) -> Any:
        found = list(real(prefix))
        # After the pruner has listed manifests, when the blob is condemned already: the latest moment.
        if prefix == keys.CHECKPOINTS and read_condemned(objects).condemned and not done:
            done.append(True)
            store.push(3)
        return iter(found)

    monkeypatch.setattr(objects, "list", push_after_intents)
    pruned(objects, 0)

    assert done
    assert set(digests) <= blobs(objects)
    assert read_condemned(objects).retired_names == {}


def test_without_compare_and_swap_a_prune_must_be_exclusive(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None]
) -> None:
    drop(objects, store, 1)
    with pytest.raises(RemoteError, match="cannot run at the same time as pushes"):
        pruned(objects, 0, cas=False)
    intent = Intent.of([Place("main", 9, A)], [A], lambda: 0.0)
    intent.write(objects)
    with pytest.raises(InUse, match="is under way"):
        pruned(objects, 0, cas=False, exclusive=True)
    clock(2 * DAY_S)
    report = pruned(objects, DAY_S, cas=False, exclusive=True)

    assert report.removed_count == 1
    assert list(objects.list(keys.INTENTS)) == []
    assert objects.head(keys.CONDEMNED) is None


@pytest.mark.parametrize("prefix", [keys.CHECKPOINTS, keys.INTENTS])
def test_an_unreadable_document_stops_a_prune(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None], prefix: str
) -> None:
    Intent.of([Place("main", 9, A)], [A], lambda: 0.0).write(objects)
    objects.put(keys.blob(B), b"b")
    key = next(one.key for one in objects.list(prefix) if not one.key.endswith("annotations.json"))
    objects.put(key, (objects.get(key, 10**6) or b"").replace(b"1", b"3"))

    with pytest.raises(CkstoreError):
        pruned(objects, 0)
    assert B in blobs(objects)


def test_a_prune_ignores_objects_that_are_no_blobs(
    store: Store, objects: ServiceObjects, clock: Callable[[float], None]
) -> None:
    for key in ("blobs/aa/other", "other", "blobs/x", "intents/other"):
        objects.put(key, b"1")
    clock(10 * DAY_S)
    pruned(objects, 60)
    pruned(objects, 60)

    assert {one.key for one in objects.list("")} >= {"blobs/aa/other", "other", "blobs/x", "intents/other"}


def test_leftovers_of_probes_are_deleted(store: Store, objects: ServiceObjects, clock: Callable[[float], None]) -> None:
    objects.put("probe/x", b"1")
    pruned(objects)
    assert objects.head("probe/x") is not None
    clock(2 * DAY_S)
    pruned(objects)

    assert objects.head("probe/x") is None


def test_concurrent_pushes_and_pruners_lose_nothing(tmp_path: Path, memory: Target, objects: ServiceObjects) -> None:
    stores = [Store.init(tmp_path / f"s{i}", chunk_bytes=2**20) for i in range(2)]
    for store in stores:
        store.remotes.add("cold", memory.address)
    stop = threading.Event()
    failures: list[BaseException] = []

    def prune_on() -> None:
        try:
            while not stop.is_set():
                pruned(ServiceObjects(memory), 0)
        except BaseException as error:
            failures.append(error)

    pruner = threading.Thread(target=prune_on)
    pruner.start()
    try:
        for step in range(6):
            for i, store in enumerate(stores):
                store.save({"x": bytes([step]) * 3000, "own": bytes([i]) * 3000}, step=step, run=f"r{i}")
                store.push(run=f"r{i}", all=False)
    finally:
        stop.set()
        pruner.join()
    other = Store.init(tmp_path / "other")
    other.remotes.add("cold", memory.address)
    other.pull(run="r0")

    assert failures == []
    for step in range(6):
        assert other.load(f"r0@{step}") == stores[0].load(step)
    assert other.verify().ok


def test_a_prune_by_the_name_of_a_remote(store: Store, tmp_path: Path) -> None:
    report = store.remotes.prune("cold", dry_run=True)

    assert str(report) == "would remove 0 blobs, 0 B, from cold"
    assert store.remotes.prune("").removed_count == 0
    with pytest.raises(BadInput, match="at least 60 seconds"):
        store.remotes.prune("cold", grace="1s")
    Store.init(tmp_path / "other")
    store.remotes.add("nas", tmp_path / "other")
    with pytest.raises(BadInput, match="nas is a store, in "):
        store.remotes.prune("nas")


def _blobs_of(store: Store, step: int) -> list[str]:
    return [path.name for path in blobs_dir(store.path, "main", step).iterdir()]
