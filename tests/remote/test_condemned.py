"""Which name of a blob counts, and how a push takes blobs from what is condemned."""

from __future__ import annotations

import pytest

from ckstore.errors import CkstoreError, RemoteError
from ckstore.model.seal import seal
from ckstore.remote import condemned
from ckstore.remote.condemned import Batch, Condemned, claim, find, key_of, name_in, read_condemned, write_condemned
from ckstore.remote.engine import ServiceObjects
from ckstore.remote.target import Target

A, B, C = (f"xxh3-{letter * 32}" for letter in "abc")
NOW = "2026-11-26T09:30:00.000000Z"
BATCH = "0" * 32


@pytest.fixture
def objects(memory: Target) -> ServiceObjects:
    """Return objects in memory."""
    return ServiceObjects(memory)


def test_nothing_is_condemned_at_first(objects: ServiceObjects) -> None:
    assert claim(objects, [A, B], cas=True) == {A: A, B: B}
    assert objects.head(condemned.KEY) is None


def test_a_push_takes_condemned_blobs_out_and_burns_names_that_go(objects: ServiceObjects) -> None:
    said = Condemned({C: 2}, {A: NOW, B: NOW, f"{C}.2": NOW}, {BATCH: Batch((f"{C}.2", A), NOW)})
    write_condemned(objects, said, None)

    assert claim(objects, [A, C], cas=True) == {A: f"{A}.1", C: f"{C}.3"}
    assert read_condemned(objects)[0] == Condemned({A: 1, C: 3}, {B: NOW}, said.deleting)
    assert claim(objects, [A, C], cas=True) == {A: f"{A}.1", C: f"{C}.3"}


def test_without_compare_and_swap_condemned_blobs_stop_a_push(objects: ServiceObjects) -> None:
    write_condemned(objects, Condemned(condemned={A: NOW}), None)

    assert claim(objects, [B], cas=False) == {B: B}
    with pytest.raises(RemoteError, match="does not compare"):
        claim(objects, [A], cas=False)


def test_another_client_that_was_faster_is_heard(objects: ServiceObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    write_condemned(objects, Condemned(condemned={A: NOW}), None)
    real, changes = (
        objects.update,
        [Condemned(condemned={A: NOW, B: NOW}), Condemned(deleting={BATCH: Batch((A,), NOW)})],
    )

    def update(*args: object) -> object:
        if changes:
            _, version = read_condemned(objects)
            real(condemned.KEY, seal(changes.pop(0).render()), version)  # type: ignore[arg-type]
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "update", update)

    assert claim(objects, [A], cas=True) == {A: f"{A}.1"}


def test_a_reader_finds_the_name_that_counts(objects: ServiceObjects) -> None:
    assert find(objects, A) is None
    for name in (f"{A}.1", f"{A}.10", f"{A}.9", f"{A}.x", f"{B}.1"):
        objects.put(key_of(name), b"1")

    assert (find(objects, A) or pytest.fail("missing")).key == key_of(f"{A}.10")
    objects.put(key_of(A), b"1")
    assert (find(objects, A) or pytest.fail("missing")).key == key_of(A)


@pytest.mark.parametrize(
    "key", ["blobs/aa/x", f"blobs/bb/{A}", f"blobs/aa/{A}.0", f"blobs/aa/{A}.01", f"blobs/aa/{A}.", A]
)
def test_other_keys_are_not_those_of_blobs(name: str) -> None:
    assert name_in(f"blobs/{name}") is None
    assert name_in(name) is None


def test_the_names_of_blobs_are_found_in_their_keys() -> None:
    assert [name_in(key_of(name)) for name in (A, f"{A}.1", f"{A}.12")] == [A, f"{A}.1", f"{A}.12"]


@pytest.mark.parametrize(
    "change",
    [
        {"burnt": {"../x": 1}},
        {"burnt": {A: 0}},
        {"burnt": {A: True}},
        {"condemned": {"../x": NOW}},
        {"condemned": {A: "now"}},
        {"deleting": {BATCH: {"names": ["manifest.json"], "since": NOW}}},
        {"deleting": {"x": {"names": [A], "since": NOW}}},
        {"deleting": []},
        {"version": 2},
        {"format": "x"},
    ],
    ids=str,
)
def test_a_document_that_is_not_as_it_should_be_stops_a_push(
    objects: ServiceObjects, change: dict[str, object]
) -> None:
    import json

    members = {**json.loads(Condemned().render()), **change}
    objects.put(condemned.KEY, seal(json.dumps(members).encode()))

    with pytest.raises(CkstoreError):
        claim(objects, [A], cas=True)


def test_a_flipped_bit_is_found(objects: ServiceObjects) -> None:
    write_condemned(objects, Condemned({A: 1}), None)
    data = objects.get(condemned.KEY, 10**6) or b""
    objects.put(condemned.KEY, data.replace(b":1", b":3", 1))

    with pytest.raises(CkstoreError, match="digest"):
        claim(objects, [A], cas=True)
