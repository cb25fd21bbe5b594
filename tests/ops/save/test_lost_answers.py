"""A rename that a server did and did not answer: the save looks whether it was done."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import NoSuchRef, SaveFailed, UnknownOutcome
from ckstore.fs import files, links
from ckstore.fs.locks import DirectoryLock
from ckstore.objects.publish import IfExists
from tests.support.checkpoint_dirs import step_of_name
from tests.support.stores import check_store

FIRST, SECOND = {"w": np.arange(1000)}, {"w": np.ones(1000)}


def losing(
    monkeypatch: pytest.MonkeyPatch, code: int, is_lost: Callable[[str, str], bool], most: int = 10
) -> list[str]:
    """Have renames done and fail where the paths are such; return the targets of those that did."""
    lost: list[str] = []
    original = links.rename

    def call(source: Any, target: Any, **given: Any) -> None:
        original(source, target, **given)
        if is_lost(str(source), str(target)) and len(lost) < most:
            lost.append(str(target))
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(links, "rename", call)
    return lost


def into_place(_: str, target: str) -> bool:
    return "/checkpoints/" in target


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ETIMEDOUT])
def test_a_checkpoint_that_got_its_place_is_saved(store: Store, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    lost = losing(monkeypatch, code, into_place)

    info = store.save(FIRST, step=1)

    assert len(lost) == 1
    assert [one.event for one in store.events()] == ["saved"]  # by the first try
    assert (store.load(info)["w"] == FIRST["w"]).all()
    check_store(store.path)


def test_on_a_shared_filesystem_the_hidden_name_and_the_name_are_got_without_an_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.config.shared = True
    lost = losing(monkeypatch, errno.EIO, into_place)
    with Store.open(store.path) as shared:
        info = shared.save(FIRST, step=1)

        assert [os.path.basename(target) for target in lost] == [".1", info.directory]
        assert (shared.load(info)["w"] == FIRST["w"]).all()
    monkeypatch.undo()
    store.config.shared = None


def test_a_checkpoint_that_supersedes_another_is_saved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(FIRST, step=1)
    lost = losing(monkeypatch, errno.EIO, into_place)

    store.save(SECOND, step=1, if_exists="replace")

    assert len(lost) == 1
    assert (store.load(1)["w"] == SECOND["w"]).all()
    check_store(store.path)


def test_a_save_whose_drop_of_the_older_one_got_no_answer_is_saved_and_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = store.save(FIRST, step=1)
    with monkeypatch.context() as patched:
        lost = losing(patched, errno.EIO, lambda _, target: "/trash/" in target, most=1)
        info = store.save(SECOND, step=1, if_exists="replace")

    assert len(lost) == 1
    assert info.warnings == ("the older checkpoint of main@1 was not dropped: Input/output error",)
    assert store.checkpoints(superseded=True) == [info]
    with pytest.raises(NoSuchRef):
        store.load(first)
    assert (store.load(1)["w"] == SECOND["w"]).all()
    store.gc()
    check_store(store.path)


def test_a_save_is_not_misled_where_what_is_open_is_looked_up_by_its_last_path(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of libfuse do: which path a directory has now is told them by answers alone."""
    fstat = os.fstat
    with monkeypatch.context() as patched:
        lost = losing(patched, errno.EIO, into_place)

        def by_last_path(fd: int) -> os.stat_result:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path in lost:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return fstat(fd)

        patched.setattr(os, "fstat", by_last_path)
        store.save(FIRST, step=1)

    assert len(lost) == 1
    assert (store.load(1)["w"] == FIRST["w"]).all()
    check_store(store.path)


def test_where_it_cannot_be_told_the_outcome_is_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, errno.EIO, into_place)
    names = DirectoryLock.names

    def unreachable(lock: DirectoryLock, path: Any) -> bool:
        if "/checkpoints/main/" in str(path) and step_of_name(os.path.basename(str(path))) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return names(lock, path)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryLock, "names", unreachable)
        with pytest.raises(UnknownOutcome, match="it is unknown whether"):
            store.save(FIRST, step=1)

    assert [one.event for one in store.events()] == ["unknown"]
    assert (Store.open(store.path).load(1)["w"] == FIRST["w"]).all()


def test_a_rename_that_was_not_done_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    original = links.rename

    def failing(source: Any, target: Any, **given: Any) -> None:
        if into_place("", str(target)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        original(source, target, **given)

    with monkeypatch.context() as patch:
        patch.setattr(links, "rename", failing)
        with pytest.raises(SaveFailed, match="Nothing was published"):
            store.save(FIRST, step=1)

    assert store.checkpoints() == []
    store.save(FIRST, step=1)
    check_store(store.path)


@pytest.mark.parametrize("if_exists", ["error", "replace"])
@pytest.mark.parametrize("goes_down", [True, False], ids=["down", "up"])
def test_a_rename_that_a_filesystem_refuses_while_it_goes_down_may_have_happened(
    store: Store, monkeypatch: pytest.MonkeyPatch, if_exists: IfExists, *, goes_down: bool
) -> None:
    """The replay of its journal may do what it answered EIO to; one that still syncs did nothing."""
    store.save(FIRST, step=1)
    sync = files.sync_open_directory
    down = False

    def refusing(source: Any, target: Any, **given: Any) -> None:
        nonlocal down
        if not into_place(str(source), str(target)):
            original(source, target, **given)
            return
        down = goes_down
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def syncing(fd: int) -> None:
        if down:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    original = links.rename
    monkeypatch.setattr(links, "rename", refusing)
    monkeypatch.setattr(files, "sync_open_directory", syncing)
    with pytest.raises(UnknownOutcome if goes_down else SaveFailed):
        store.save(SECOND, step=1 if if_exists == "replace" else 2, if_exists=if_exists)

    assert store.events()[-1].event == ("unknown" if goes_down else "failed")
