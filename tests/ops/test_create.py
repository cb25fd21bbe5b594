"""Several who make one store at once, also two hosts on a shared filesystem, where neither sees the other's locks."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ckstore import Store
from ckstore.errors import StoreNotFound
from ckstore.fs import files, links, locks
from ckstore.objects.layout import Layout
from ckstore.ops import create as creating
from tests.support.crashing import run_and_kill
from tests.support.meanwhile import run_with
from tests.support.stores import check_store

if TYPE_CHECKING:
    from pathlib import Path

STEPS = [
    (links, "link"),
    (links, "rename"),
    (links, "rename_new"),
    (links, "exchange"),
    (links, "make_directory"),
    (links, "unlink"),
    (links, "remove_directory"),
    (files, "create_file"),
    (files, "sync_directory"),
    (os, "listdir"),
]


def create(root: Path) -> bool:
    return creating.create(root, hash_name="xxh3_128", chunk_bytes=2**20)


def names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


@pytest.fixture
def no_common_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the root keep nobody out, as those of another host do not."""
    monkeypatch.setattr(locks, "lock_exclusive", lambda *_, **__: nullcontext())


def leave_half_made(root: Path) -> None:
    """Leave what killed processes left: a temporary store.json, and names of one who was just trying links."""
    for at in itertools.count(1):
        assert run_and_kill(lambda: create(root), at=at, before=False)
        if any(name.startswith(".try-") for folder in Layout(root).linked for name in names(folder)):
            break
    (root / "store.json.0123456789ab").touch()


def check_clean(root: Path) -> None:
    """Opening leaves nothing but a store that works."""
    with Store.open(root) as store:
        store.save({"w": b"1"}, step=1)
        assert [info.step for info in store.checkpoints()] == [1]
    check_store(root)
    layout = Layout(root)
    assert [name for name in os.listdir(root) if name.startswith("store.json")] == ["store.json"]
    assert [name for folder in layout.linked for name in os.listdir(folder) if "try-" in name] == []
    assert os.listdir(layout.staging) == []


@pytest.mark.usefixtures("no_common_locks")
@pytest.mark.parametrize("half", [False, True], ids=["nothing there", "half-made there"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_of_two_who_make_a_store_at_once_one_does_and_both_have_it(tmp_path: Path, before: bool, half: bool) -> None:
    if half:
        leave_half_made(tmp_path / "half")
    for at in itertools.count(1):
        root = tmp_path / str(at)
        if half:
            shutil.copytree(tmp_path / "half", root)
        made: list[bool] = []
        settings: list[object] = []

        def meanwhile(root: Path = root, made: list[bool] = made, settings: list[object] = settings) -> None:
            made.append(create(root))
            Store.open(root).close()
            settings.append(creating.read_settings(root))

        mine, there = run_with(partial(create, root), meanwhile, at, before=before, steps=STEPS)

        assert [mine, *made].count(True) == 1, f"at step {at}"
        assert all(read == creating.read_settings(root) for read in settings), "the settings of a store were replaced"
        check_clean(root)
        if not there:
            break
    assert at > 25


@pytest.mark.usefixtures("no_common_locks")
def test_one_who_dies_while_he_makes_a_store_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    """At each step of ours another one begins, and dies at one of his, at another one each time."""
    for at in itertools.count(1):
        root = tmp_path / str(at)

        def meanwhile(root: Path = root, at: int = at) -> None:
            run_and_kill(lambda: create(root), at=1 + at * 17 % 29, before=False)

        there = run_with(partial(create, root), meanwhile, at, before=True, steps=STEPS)[1]

        check_clean(root)
        if not there:
            break
    assert at > 25


def test_what_killed_makers_left_is_gone_when_the_store_is_made(tmp_path: Path) -> None:
    leave_half_made(tmp_path / "store")
    with pytest.raises(StoreNotFound):
        Store.open(tmp_path / "store")

    Store.init(tmp_path / "store").close()

    check_clean(tmp_path / "store")
