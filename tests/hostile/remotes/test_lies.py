"""A remote that lies while it is used: nothing is let go because of its word, and nothing gets a wrong name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ckstore import CkstoreError, Store
from ckstore.remote import keys, remote_opener
from ckstore.remote.objects import ObjectEntry, Remote
from tests.faults.states import fingerprint
from tests.hostile.places import state
from tests.remote.double import REMOTES, Double, new_remote

Lie = Callable[[Double], None]


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_opener, "open_remote", lambda _context, name, **_: REMOTES[name])


def _is_blob(key: str) -> bool:
    return key.startswith(keys.BLOBS)


def _drops_what_it_takes(double: Double) -> None:
    """Each write is answered with what was to be written, and blobs are not kept."""
    put = double.put

    def take(key: str, data: bytes | memoryview) -> ObjectEntry:
        written = put(key, data)
        if _is_blob(key):
            del double.held[key]
        return written

    double.put = take  # type: ignore[method-assign]


def _lists_what_it_never_had(double: Double) -> None:
    """Blobs are listed, and shown one by one, with their right sizes, and are not there."""
    _drops_what_it_takes(double)
    put, known = double.put, dict[str, ObjectEntry]()

    def take(key: str, data: bytes | memoryview) -> ObjectEntry:
        written = put(key, data)
        if _is_blob(key):
            known[key] = written
        return written

    head, real_list = double.head, double.list

    def listed(prefix: str) -> Iterator[ObjectEntry]:
        more = [one for key, one in known.items() if key.startswith(prefix)]
        return iter(sorted([*real_list(prefix), *more]))

    double.put = take  # type: ignore[method-assign]
    double.head = lambda key: known.get(key) or head(key)  # type: ignore[method-assign]
    double.list = listed  # type: ignore[method-assign]


def _keeps_other_bytes(double: Double) -> None:
    double.fault = lambda call, key: "flip" if call == "put" and _is_blob(key) else None


def _keeps_half(double: Double) -> None:
    put = double.put

    def take(key: str, data: bytes | memoryview) -> ObjectEntry:
        written = put(key, data)
        if _is_blob(key):
            double.held[key] = bytes(data)[: len(data) // 2]
        return written

    double.put = take  # type: ignore[method-assign]


def _reads_other_bytes(double: Double) -> None:
    double.fault = lambda call, key: "flip" if call == "read" else None


def _reads_nothing(double: Double) -> None:
    double.read_into = lambda key, offset, into: True  # type: ignore[method-assign]


def _lists_nothing(double: Double) -> None:
    double.list = lambda prefix: iter(())  # type: ignore[method-assign]


def _forgets_manifests(double: Double) -> None:
    get = double.get
    double.get = lambda key, max_bytes: None if key.endswith("t.json") else get(key, max_bytes)  # type: ignore[method-assign]


def _has_no_time(double: Double) -> None:
    first = [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]
    real = double._listed

    def listed(key: str) -> ObjectEntry:
        first.append(first.pop(0))
        return real(key)._replace(modified=first[0])

    double._listed = listed  # type: ignore[method-assign]


def _has_one_version(double: Double) -> None:
    """Each object has the same mark, so that any update is taken."""
    real = double._listed
    double._listed = lambda key: real(key)._replace(tag='"same"', modified=double.now)  # type: ignore[method-assign]


def _refuses_each_update(double: Double) -> None:
    double.update = lambda key, data, expected: None  # type: ignore[method-assign]
    double.create = lambda key, data: False  # type: ignore[method-assign]


def _takes_each_update(double: Double) -> None:
    double.update = lambda key, data, expected: expected  # type: ignore[method-assign]


def _answers_empty(double: Double) -> None:
    double.get = lambda key, max_bytes: b""  # type: ignore[method-assign]


LIES: tuple[Lie, ...] = (
    _drops_what_it_takes,
    _lists_what_it_never_had,
    _keeps_other_bytes,
    _keeps_half,
    _reads_other_bytes,
    _reads_nothing,
    _lists_nothing,
    _forgets_manifests,
    _has_no_time,
    _has_one_version,
    _refuses_each_update,
    _takes_each_update,
    _answers_empty,
)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("begins", ["before the push", "after the push"])
def test_no_lie_makes_a_store_lose_anything(tmp_path: Path, lie: Lie, begins: str) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    store.save(state(1), step=1)
    store.save(state(2), step=2)
    store.tag("best", 1)
    double, name = new_remote(store.settings)
    other = Store.init(tmp_path / "other", chunk_bytes=2**20)
    if begins == "before the push":
        lie(double)
    with suppress(CkstoreError):
        store.push(remote=name, all=True)
    if begins == "after the push":
        lie(double)

    with suppress(CkstoreError):
        other.pull(remote=name, all=True)
    evicted = []
    with suppress(CkstoreError):
        evicted = [info.step for info in store.evict(remote=name, all=True).evicted]
    with suppress(CkstoreError):
        store.remotes.prune(name)
    with suppress(CkstoreError):
        store.push(remote=name, all=True)

    # Whatever is here is right, under the names that it has; a remote that lists less than it has is said to lack it.
    assert not store.verify().damage
    for info in other.checkpoints():
        assert fingerprint(other.load(info)) == fingerprint(state(info.step))
    for step in (1, 2):
        try:
            assert fingerprint(store.load(step)) == fingerprint(state(step))
        except CkstoreError:  # it has to be read from there, and other bytes, or none, are refused
            assert step in evicted
            assert _is_whole_there(double, store, step), "bytes were let go that the remote never gave back"


def _is_whole_there(double: Double, store: Store, step: int) -> bool:
    """Whether the objects hold every blob, so that the eviction was right and only the reading is lied to."""
    blobs = {name.digest for key in double.held if (name := keys.blob_in(key)) is not None}
    from ckstore.ops.refs.find import open_directory

    with open_directory(store._context, store.info(step)) as directory:
        return {blob.digest for blob in directory.manifest.blobs} <= blobs


def test_a_service_that_checks_bodies_and_then_lists_less_keeps_nothing_from_being_here(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    store.save(state(1), step=1)
    double, name = new_remote(store.settings, checks_bodies=True)
    store.push(1, name)
    key = next(key for key in double.held if _is_blob(key))
    double.put(key, double.held[key])  # another version, perhaps of another writer: its bytes are read back
    double.fault = lambda call, at: "flip" if call == "read" and at == key else None

    assert not store.evict(1, name).evicted
    assert fingerprint(store.load(1)) == fingerprint(state(1))


def test_a_clock_that_runs_away_removes_nothing_that_is_named(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    store.save(state(1), step=1)
    double, name = new_remote(store.settings)
    store.push(1, name)
    held = {key for key in double.held if _is_blob(key)}
    for _ in range(4):
        double.now += timedelta(days=365 * 1000)
        store.remotes.prune(name)
    assert held <= double.held.keys()
    assert isinstance(REMOTES[name], Remote)
