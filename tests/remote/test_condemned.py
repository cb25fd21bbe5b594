"""Current names of blobs, and how a push unmarks blobs that are marked for deletion."""

from __future__ import annotations

import pytest

from ckstore.errors import CkstoreError
from ckstore.model.seal import seal
from ckstore.remote import keys
from ckstore.remote.documents.condemned_names import (
    MAX_BYTES,
    MOST_BURNT,
    MOST_CONDEMNED,
    Batch,
    CondemnedNames,
    read_condemned,
    read_versioned,
    swap,
    unmark_needed,
)
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target

A, B, C = (f"xxh3-{letter * 32}" for letter in "abc")
NOW = "2026-11-26T09:30:00.000000Z"
BATCH = "0" * 32


@pytest.fixture
def objects(memory: Target) -> ServiceObjects:
    """Return objects in memory."""
    return ServiceObjects(memory)


def test_a_new_remote_has_no_marked_blobs(objects: ServiceObjects) -> None:
    assert names(objects, A, B) == [A, B]
    assert objects.head(keys.CONDEMNED) is None


def test_a_push_unmarks_blobs_and_retires_names_that_are_being_deleted(objects: ServiceObjects) -> None:
    said = CondemnedNames({A: NOW, B: NOW, f"{C}.2": NOW}, {BATCH: Batch((f"{C}.2", A), NOW)}, {C: 2})
    swap(objects, said, None)

    assert names(objects, A, C) == [f"{A}.1", f"{C}.3"]
    assert read_condemned(objects) == CondemnedNames({B: NOW}, said.deleting, {A: 1, C: 3})
    assert names(objects, A, C) == [f"{A}.1", f"{C}.3"]


def test_a_change_by_a_faster_client_is_read_again(objects: ServiceObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    swap(objects, CondemnedNames(condemned={A: NOW}), None)
    real, changes = (
        objects.update,
        [CondemnedNames(condemned={A: NOW, B: NOW}), CondemnedNames(deleting={BATCH: Batch((A,), NOW)})],
    )

    def update(*args: object) -> object:
        if changes:
            _, version = read_versioned(objects)
            real(keys.CONDEMNED, seal(changes.pop(0).render()), version)  # type: ignore[arg-type]
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "update", update)

    assert names(objects, A) == [f"{A}.1"]


def test_the_most_that_a_pruner_enters_fits() -> None:
    """Names with the longest digests, each retired many times. The whole batch of a dead pruner is retired."""
    digests = [f"blake3-{number:064x}" for number in range(1000)]
    names = [f"{digest}.999" for digest in digests]
    condemned = len(CondemnedNames(condemned=dict.fromkeys(names, NOW)).render()) / 1000
    burnt = len(CondemnedNames(retired_names=dict.fromkeys(digests, 999)).render()) / 1000

    assert condemned * MOST_CONDEMNED + burnt * MOST_BURNT < MAX_BYTES


@pytest.mark.parametrize("name", ["aa/x", f"bb/{A}", f"aa/{A}.0", f"aa/{A}.01", f"aa/{A}."])
def test_keys_of_other_objects_are_not_taken_for_blobs(name: str) -> None:
    assert keys.blob_in(f"blobs/{name}") is None
    assert keys.blob_in(name) is None


def test_the_names_of_blobs_are_found_in_their_keys() -> None:
    names = [A, f"{A}.1", f"{A}.12"]

    assert [str(keys.blob_in(keys.blob(name))) for name in names] == names


def test_a_retired_name_is_never_used_again() -> None:
    said = CondemnedNames(retired_names={B: 3})
    said.burn([A, f"{B}.1", f"{C}.4"])

    assert said.retired_names == {A: 1, B: 3, C: 5}


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
def test_an_invalid_document_stops_a_push(objects: ServiceObjects, change: dict[str, object]) -> None:
    import json

    members = {**json.loads(CondemnedNames().render()), **change}
    objects.put(keys.CONDEMNED, seal(json.dumps(members).encode()))

    with pytest.raises(CkstoreError):
        names(objects, A)


def test_a_flipped_bit_is_found(objects: ServiceObjects) -> None:
    swap(objects, CondemnedNames(retired_names={A: 1}), None)
    data = objects.get(keys.CONDEMNED, 10**6) or b""
    objects.put(keys.CONDEMNED, data.replace(b":1", b":3", 1))

    with pytest.raises(CkstoreError, match="digest"):
        names(objects, A)


def names(objects: ServiceObjects, *digests: str) -> list[str]:
    """Return the names that a push of these blobs uses."""
    found = unmark_needed(objects, digests, cas=True)
    return [str(found.name(digest)) for digest in digests]
