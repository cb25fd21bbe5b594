"""A save that is durable returns; its warnings say which tag could not be written, and why the catalog lacks it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckstore import CheckpointInfo, Store
from ckstore.fs import locks
from ckstore.ops.save import save as save_module
from tests.support.meanwhile import elsewhere


@pytest.fixture
def in_the_way(store: Store) -> Iterator[Path]:
    """A directory that has the name of a tag, so that none can be written there."""
    path = store.path / "refs" / "best"
    path.mkdir()
    yield path
    path.rmdir()


@pytest.mark.crossed
@pytest.mark.usefixtures("in_the_way")
@pytest.mark.parametrize("before", [False, True], ids=["new", "the same content is there"])
@pytest.mark.parametrize("how", ["save", "commit"])
def test_a_tag_that_could_not_be_written_is_in_the_warnings(
    store: Store, tmp_path: Path, how: str, before: bool
) -> None:
    (tmp_path / "file").write_text("kept")
    what = {"w": 1} if how == "save" else tmp_path / "file"
    if before:
        getattr(store, how)(what, 3)

    info = getattr(store, how)(what, 3, tags=["best", "other"])

    assert info.tags == store.info(3).tags == ("other",)
    (warning,) = info.warnings
    assert warning.startswith("main@3 is saved, but its tag 'best' is not: ")
    assert "Is a directory" in warning
    assert "ckstore tag best main@3" in warning


def test_why_the_catalog_does_not_know_a_save_is_in_the_warnings(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.ops.save.save.CATALOG_TIMEOUT_S", 0.01)
    with locks.lock_exclusive(store.path, timeout_s=0.0):
        info = elsewhere(lambda: store.save({"w": 1}))

    assert not info.catalogued
    (warning,) = info.warnings
    assert warning.startswith("main@0 is saved, but is not in the catalog yet: ")
    assert "is locked by another process" in warning
    assert store.save({"w": 2}).warnings == ()


def test_a_process_that_has_no_descriptor_left_when_the_save_is_durable_is_told_that_it_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = save_module._finish

    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def with_none_left(*given: Any) -> CheckpointInfo:
        patched.setattr(os, "open", refuse)
        return finish(*given)

    with monkeypatch.context() as patched:
        patched.setattr(save_module, "_finish", with_none_left)
        info = store.save({"w": 1}, tags=["best"], metrics={"loss": 1.0})

    latest = store.latest()
    assert latest is not None
    assert info == replace(latest, warnings=info.warnings, counters=info.counters, tags=(), catalogued=False)
    assert any("Too many open files" in warning for warning in info.warnings)
