"""Manifests are read once a process, and again as soon as somebody touched the file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ckstore.model.manifest_read import parse_manifest
from ckstore.ops import seen, validity
from ckstore.ops.validity import why_not_valid

if TYPE_CHECKING:
    from ckstore import Store


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that are parsed from here on."""
    found: list[str] = []
    original = parse_manifest

    def watched(data: bytes, *, where: str) -> object:
        found.append(where)
        return original(data, where=where)

    monkeypatch.setattr(validity, "parse_manifest", watched)
    return found


def test_what_was_saved_or_read_here_is_not_read_again(store: Store, reads: list[str]) -> None:
    info = store.save({"w": np.arange(10)}, 1)
    context = store._context

    assert [why_not_valid(context, info) for _ in range(3)] == [""] * 3
    assert reads == []

    other = type(store).open(store.path)._context
    assert [why_not_valid(other, info) for _ in range(3)] == [""] * 3
    assert len(reads) == 1


def test_a_manifest_that_was_written_into_or_replaced_is_read_again(store: Store) -> None:
    info = store.save({"w": np.arange(10)}, 1)
    path = store.directory_of(1) / "manifest.json"
    good = path.read_bytes()

    os.chmod(path, 0o644)
    path.write_bytes(good.replace(b'"step":1', b'"step":2'))
    assert "digest" in why_not_valid(store._context, info)
    path.unlink()
    assert "missing" in why_not_valid(store._context, info)
    path.write_bytes(good)
    assert why_not_valid(store._context, info) == ""


def test_blobs_and_marks_are_looked_at_each_time(store: Store) -> None:
    info = store.save({"w": np.arange(10)}, 1)
    (blob,) = (store.directory_of(1) / "blobs").iterdir()
    bytes_of_blob, status = blob.read_bytes(), blob.stat()

    blob.unlink()
    assert f"blob {blob.name} is missing" in why_not_valid(store._context, info)

    os.link(store.path / "blobs" / blob.name.partition("-")[2][:2] / blob.name, blob)
    assert why_not_valid(store._context, info) == ""
    assert (blob.read_bytes(), blob.stat().st_ino) == (bytes_of_blob, status.st_ino)


def test_memory_is_bounded_by_the_number_of_blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_MOST_BLOBS", 3)
    infos = [store.save({"w": np.arange(10 + step)}, step) for step in range(6)]

    known = store._context.manifests_seen._known

    assert sum(len(manifest.blobs) for manifest, _ in known.values()) <= 3
    assert [why_not_valid(store._context, info) for info in infos] == [""] * 6
