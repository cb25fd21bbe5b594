"""Every store in `stores/` is read, also by its format pages alone, and every operation continues it without a loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ckstore import NoSuchRef, Store
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.saver import helper_start
from ckstore.store import context_of
from tests.compat.archives import (
    ARCHIVES,
    Unpacked,
    check_by_the_library,
    check_by_the_pages,
    check_damage,
    check_load,
    check_remote_by_the_pages,
    unpack,
)
from tests.compat.page_names import unnamed
from tests.compat.stores.write_stores import described, weights
from tests.support.draft_stores import draft_names, is_converted
from tests.support.stores import check_store

pytestmark = pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")


@pytest.fixture(params=ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unpacked:
    """Return a store of an archive. No process mirrors it in the background."""
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    return unpack(request.param, tmp_path)


def listing(folder: Path) -> list[tuple[str, int, int, int, int]]:
    """Return what shows that something below a folder was changed, except for locks of SQLite's readers."""
    paths = sorted(path for path in folder.rglob("*") if not path.name.startswith("catalog.db-"))
    found = ((path, path.lstat()) for path in paths)
    return [(str(path), one.st_ino, one.st_mode, one.st_size, one.st_mtime_ns) for path, one in found]


def test_it_is_read_by_the_format_pages_and_by_a_process_that_may_not_write(made: Unpacked) -> None:
    before = listing(made.root)
    check_by_the_pages(made)
    if at_remote := made.facts("at_remote"):
        check_remote_by_the_pages(made, at_remote)
    with Store.open(made.root, readonly=True) as store:
        check_by_the_library(store, made)
        check_damage(store, made)

    assert listing(made.root) == before


def test_the_format_pages_name_all_its_files_and_members(made: Unpacked) -> None:
    found = unnamed(made.root, is_remote=False)
    if made.remote is not None:
        found += unnamed(made.remote, is_remote=not made.is_remote_a_store)

    assert found == []


def test_a_name_that_the_format_pages_lack_is_found(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"format": "ckstore-store", "colour": "red"}')
    (tmp_path / "config.json").write_text('{"retention_by_run": {"sweep-*": {"keep_last": 1, "keep_odd": 3}}}')
    (tmp_path / "notes.txt").touch()

    assert unnamed(tmp_path, is_remote=False) == [
        "no page names the member keep_odd of config.json",
        "no page names the file notes.txt",
        "no page names the member colour of store.json",
    ]


def test_it_is_continued_by_every_operation_without_a_loss(made: Unpacked, tmp_path: Path) -> None:
    with Store.open(made.root) as store:
        assert (draft_names(made.root), is_converted(made.root)) == ([], True)
        check_by_the_library(store, made)
        check_damage(store, made)
        check_by_the_pages(made)

        repair(store, made)
        first, second = (store.save(weights(100 + number), run="main") for number in range(2))
        replaced = store.save(weights(102), first.step, "main", if_exists="replace")
        store.gc()
        undo(store, made)
        if made.remote is not None:
            use_remote(store, made, tmp_path)
        store.compact(keep_newest=1)
        store.gc()

        assert made.contents["listed"].items() <= {info.name: info.id for info in store.checkpoints()}.items()
        check_all(store, made)
        assert dict(described(store.load(second))) == dict(described(weights(101)))
        assert dict(described(store.load(replaced))) == dict(described(weights(102)))
        assert {tag.name: tag.id for tag in store.tags()} == made.contents["tags"]
        assert store.verify().ok
    catalogs = [*made.root.glob("catalog.db"), *tmp_path.glob(".home/.cache/ckstore/*/catalog.db")]
    check_store(made.root, catalogs[0])


def repair(store: Store, made: Unpacked) -> None:
    """Save the damaged checkpoints again, which replaces their damaged directories."""
    for id in made.facts("damaged"):
        wanted = made.contents["saved"][id]
        state = weights(wanted["step"])
        assert dict(described(state)) == wanted["values"]
        assert store.save(state, wanted["step"], wanted["run"], if_exists="replace").id not in made.facts("damaged")
        made.contents["listed"] = {name: one for name, one in made.contents["listed"].items() if one != id}
    assert store.verify().ok


def undo(store: Store, made: Unpacked) -> None:
    """Restore what was dropped, and drop one checkpoint for good."""
    for id in made.contents["undoable"]:
        check_load(store, store.undo(id), made.contents["saved"][id])
    assert {info.id for info in store.checkpoints(superseded=True)} >= {*made.contents["undoable"]}
    info = store.save(weights(103), run="main")
    store.delete(info, now=True)
    with pytest.raises(NoSuchRef):
        store.info(info)


def use_remote(store: Store, made: Unpacked, tmp_path: Path) -> None:
    """Pull, push, evict, mirror and clone."""
    (name,) = [entry.name for entry in store.remotes]
    remote = tmp_path / "remote"
    if made.is_remote_a_store:  # as a draft had it; it is only read
        remote = tmp_path / "new"
        store.remotes.convert(name, "new", remote)
        store.remotes.remove(name)
        name, made = "new", replace(made, remote=remote)
    store.config.keep_remote = None  # its rule would drop checkpoints that only the remote has
    mirror = Mirror(context_of(store))
    while mirror.step():
        pass
    assert mirror.problem is None
    store.push(all=True)
    check_remote_by_the_pages(made, {info.id for info in store.checkpoints()})
    if away := [info for info in store.checkpoints(superseded=True) if info.elsewhere]:
        store.pull(away, name)
    assert not any(info.elsewhere for info in store.checkpoints(superseded=True))
    for info in store.checkpoints():
        store.evict(info, name)
    remotes = store.remotes
    assert remotes.verify(name).ok
    remotes.prune(name)
    with Store.clone(remote, tmp_path / "clone") as clone:
        check_all(clone, made)
    check_all(store, made)


def check_all(store: Store, made: Unpacked) -> None:
    """Load each checkpoint that the archive has, and the store lists."""
    for info in store.checkpoints(superseded=True):
        if info.id in made.contents["saved"]:
            check_load(store, info, made.contents["saved"][info.id])
