"""A rename that a server did and did not answer: the save looks whether it was done."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import SaveFailed, UnknownOutcome, UnsafePlace
from ckstore.fs import files, links
from ckstore.fs.locks import DirectoryLock
from tests.support.checkpoint_dirs import checkpoint_dir, step_of_name
from tests.support.stores import check_store

FIRST, SECOND = {"w": np.arange(1000)}, {"w": np.ones(1000)}


def losing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, is_lost: Callable[[str, str], bool]) -> list[str]:
    """Have calls of `links` done and fail where the paths are such; return the targets of those that did."""
    lost: list[str] = []
    original = getattr(links, name)

    def call(source: Any, target: Any, **given: Any) -> None:
        original(source, target, **given)
        if is_lost(str(source), str(target)):
            lost.append(str(target))
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(links, name, call)
    return lost


def cannot_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: object) -> None:
        raise UnsafePlace("this filesystem cannot exchange two names")

    monkeypatch.setattr(links, "exchange", cannot)


def into_place(_: str, target: str) -> bool:
    return "/checkpoints/" in target


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOENT, errno.ETIMEDOUT])
def test_a_checkpoint_that_got_its_place_is_saved(store: Store, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    lost = losing(monkeypatch, "rename", code, into_place)

    info = store.save(FIRST, step=1)

    assert len(lost) == 1
    assert (store.load(info)["w"] == FIRST["w"]).all()
    check_store(store.path)


@pytest.mark.parametrize("how", ["exchange", "rename"])
def test_a_checkpoint_that_took_the_place_of_another_is_saved(
    store: Store, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    store.save(FIRST, step=1)
    if how == "rename":
        cannot_exchange(monkeypatch)
    lost = losing(monkeypatch, how, errno.EIO, into_place)

    store.save(SECOND, step=1, if_exists="replace")

    assert len(lost) == 1
    assert (store.load(1)["w"] == SECOND["w"]).all()
    check_store(store.path)


def test_a_save_is_not_misled_where_what_is_open_is_looked_up_by_its_last_path(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of libfuse do: which path a directory has now is told them by answers alone."""
    store.save(FIRST, step=1)
    exchanged: dict[str, str] = {}
    exchange, fstat = links.exchange, os.fstat

    def lost(source: Any, target: Any) -> None:
        exchange(source, target)
        exchanged.update({str(source): str(target), str(target): str(source)})
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def by_last_path(fd: int) -> os.stat_result:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return os.stat(exchanged[path]) if path in exchanged else fstat(fd)

    with monkeypatch.context() as patched:
        patched.setattr(links, "exchange", lost)
        patched.setattr(os, "fstat", by_last_path)
        store.save(SECOND, step=1, if_exists="replace")

    store.gc()  # what was replaced could not be told from what replaced it

    assert exchanged
    assert (store.load(1)["w"] == SECOND["w"]).all()
    check_store(store.path)


def test_a_checkpoint_that_left_its_place_comes_back_when_the_save_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(FIRST, step=1)
    cannot_exchange(monkeypatch)
    lost = losing(monkeypatch, "rename", errno.EIO, lambda _, target: target.endswith(".old"))

    with pytest.raises(SaveFailed, match="nothing was published"):
        store.save(SECOND, step=1, if_exists="replace")

    assert len(lost) == 1
    assert checkpoint_dir(store.path, "main", 1).is_dir()  # at once: on a shared filesystem a gap stays for the grace
    assert (store.load(1)["w"] == FIRST["w"]).all()
    check_store(store.path)


def test_where_it_cannot_be_told_the_outcome_is_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, "rename", errno.EIO, into_place)
    names = DirectoryLock.names

    def unreachable(lock: DirectoryLock, path: Any) -> bool:
        if "/checkpoints/main/" in str(path) and step_of_name(os.path.basename(str(path))) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return names(lock, path)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryLock, "names", unreachable)
        with pytest.raises(UnknownOutcome, match="cannot be told"):
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
        with pytest.raises(SaveFailed, match="nothing was published"):
            store.save(FIRST, step=1)

    assert store.checkpoints() == []
    store.save(FIRST, step=1)
    check_store(store.path)


@pytest.mark.parametrize("name", ["rename", "exchange"])
@pytest.mark.parametrize("goes_down", [True, False], ids=["down", "up"])
def test_a_rename_that_a_filesystem_refuses_while_it_goes_down_may_have_happened(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, *, goes_down: bool
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

    original = getattr(links, name)
    monkeypatch.setattr(links, name, refusing)
    monkeypatch.setattr(files, "sync_open_directory", syncing)
    with pytest.raises(SaveFailed) as caught:
        store.save(SECOND, step=1 if name == "exchange" else 2, if_exists="replace")

    assert isinstance(caught.value, UnknownOutcome) == goes_down
    assert store.events()[-1].event == ("unknown" if goes_down else "failed")
