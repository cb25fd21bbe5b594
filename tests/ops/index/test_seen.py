"""Manifests are read once a process, and again as soon as a program touched the file."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.fs.dirfd_stat import AnyPath
from ckstore.model.names import CheckpointKey, key_of
from ckstore.objects import checkpoints
from ckstore.objects.layout import HostView, Layout, RunChange
from ckstore.ops import manifest_cache
from ckstore.ops.check import validity
from ckstore.ops.check.validity import why_not_valid
from tests.support.examples import examples
from tests.support.look import directory_of

if TYPE_CHECKING:
    from ckstore import Store


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that are parsed from here on."""
    found: list[str] = []
    original = checkpoints.manifest_in

    def watched(dir_fd: int, path: AnyPath, hash_prefix: str = "") -> object:
        found.append(str(path))
        return original(dir_fd, path, hash_prefix)

    monkeypatch.setattr(validity, "manifest_in", watched)
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
    path = directory_of(store, 1) / "manifest.json"
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
    (blob,) = (directory_of(store, 1) / "blobs").iterdir()
    bytes_of_blob, status = blob.read_bytes(), blob.stat()

    blob.unlink()
    assert f"blob {blob.name} is missing" in why_not_valid(store._context, info)

    os.link(store.path / "blobs" / blob.name.partition("-")[2][:2] / blob.name, blob)
    assert why_not_valid(store._context, info) == ""
    assert (blob.read_bytes(), blob.stat().st_ino) == (bytes_of_blob, status.st_ino)


def test_memory_is_bounded_by_the_number_of_blobs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_cache, "_MOST_BLOBS", 3 * (manifest_cache._AS_BLOBS + 1))
    infos = [store.save({"w": np.arange(10 + step)}, step) for step in range(6)]

    known = store._context.known.manifests._known

    assert len(known) == 3
    assert [why_not_valid(store._context, info) for info in infos] == [""] * 6


SHORT = "0123456789"
NAMES = ("1", f"2.{SHORT}", f"2.{SHORT}.1", f"10.{SHORT}", "01", f"2.{SHORT[:9]}", "notes", str(2**53 + 1))
CHANGES = ("directory", "file", "link", "gone", "other directory")


def change(path: Path, what: str) -> None:
    """Make the name something else, whatever it is."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        path.rename(path.parent.parent / f"{len(list(path.parent.parent.iterdir()))}.away")
    path.parent.mkdir(exist_ok=True)
    if what == "file":
        path.write_bytes(b"")
    elif what == "link":
        path.symlink_to(NAMES[1])
    elif what != "gone":
        path.mkdir()


HERE = ("published here", "dropped here")


def change_here(
    directories: manifest_cache.DirectoryCache, layout: Layout, key: CheckpointKey, what: str
) -> int | None:
    """Do it as a save or a drop of this process does; return the inode number of what was published."""
    path = layout.checkpoint(key).path
    if (what == "published here") == os.path.lexists(path) or (what == "dropped here" and not path.is_dir()):
        return None
    made = layout.path / str(len(os.listdir(layout.path)))
    before = layout.run_stamp(key.run)
    if what == "dropped here":
        path.rename(made)
        directories.changed(key, None, RunChange(before, layout.run_stamp(key.run)))
        return None
    path.parent.mkdir(exist_ok=True)
    made.mkdir()
    inode = made.stat().st_ino
    made.rename(path)
    directories.changed(key, inode, RunChange(before, layout.run_stamp(key.run)))
    return inode


@settings(max_examples=examples(7), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(("main", "side")), st.sampled_from(NAMES), st.sampled_from(CHANGES + HERE)),
        min_size=1,
    )
)
def test_what_is_listed_is_published(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, changes: list[tuple[str, str, str]]
) -> None:
    monkeypatch.setattr(manifest_cache, "_TICK_NS", 10_000_000)
    layout = Layout(tmp_path_factory.mktemp("listed"))
    layout.checkpoints.path.mkdir()
    directories = manifest_cache.DirectoryCache()
    ours = set()
    for run, name, what in changes:
        key = key_of(run, name)
        if what not in HERE:
            change((layout.checkpoints / run / name).path, what)
        elif key is not None:
            ours.add(change_here(directories, layout, key, what))
        time.sleep(0.012)  # until the clock of the kernel has moved on
        expected = dict(layout.published())
        assert published(directories, layout) == published(directories, layout) == expected
        unsure = {key for found in directories.look(layout).values() for key in found.unsure}
        assert unsure == {key for key, inode in expected.items() if inode not in ours}


@pytest.mark.filterwarnings("ignore:dropped checkpoints keep their data for the grace period")
@pytest.mark.usefixtures("steady_clock")
@pytest.mark.parametrize("shared", [False, True])
def test_what_this_process_changes_is_not_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, shared: bool
) -> None:
    for step in (1, 2):
        store.save({"w": np.arange(step)}, step)
    listed: list[str] = []
    list_of = Layout.listed

    def watched(layout: Layout, run: str) -> list[tuple[str, int, bool]]:
        listed.append(run)
        return list_of(layout, run)

    monkeypatch.setattr(Layout, "listed", watched)
    object.__setattr__(store._context.layout, "view", HostView("of several hosts" if shared else ""))
    time.sleep(manifest_cache._TICK_NS / 1e9)
    store.save({"w": np.arange(3)}, 3)  # which lists, now that the last change is some time ago
    del listed[:]

    store.save({"w": np.arange(4)}, 4)
    store.delete(2)
    assert store.save({"w": np.arange(5)}).step == 5
    assert len(listed) == (3 if shared else 0)

    with type(store).open(store.path) as other:
        other.save({"w": np.arange(6)}, 6)
    del listed[:]
    assert store.save({"w": np.arange(7)}).sequence == 7
    assert listed


def published(directories: manifest_cache.DirectoryCache, layout: Layout) -> dict[CheckpointKey, int]:
    """Return what was seen, of all runs."""
    return {key: inode for run in directories.look(layout).values() for key, inode in run.published.items()}


def test_a_list_says_all_of_new_names(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(10):
        store.save({"w": np.arange(step)}, step)
    directories = manifest_cache.DirectoryCache()
    assert len(published(directories, store._context.layout)) == 10
    looked_at: list[int] = []
    inode = Layout.inode

    def watched(layout: Layout, key: CheckpointKey) -> int | None:
        looked_at.append(key.step)
        return inode(layout, key)

    store.save({"w": np.arange(11)}, 11)
    store.delete(3)
    monkeypatch.setattr(Layout, "inode", watched)

    assert len(published(directories, store._context.layout)) == 10
    assert looked_at == []


def test_marks_are_looked_for_again_after_this_process_found_damage(store: Store) -> None:
    state = {"w": np.arange(10)}
    store.save(state, 1)
    store._context.known.marks_duty._rests_until_s = math.inf  # as after a look at very many
    blob = next((directory_of(store, 1) / "blobs").iterdir())
    blob.unlink()
    assert not store.verify(1).ok

    store.save(state, 2)

    assert store.verify(1).ok
