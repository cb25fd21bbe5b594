"""A save that would not fit: told what would free how much, or making room by the policy of the store."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.errors import BadInput, InsufficientSpace
from ckstore.ops.free import make_room
from ckstore.ops.free.retain import carry_out
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.saver import helper_start
from ckstore.store import context_of
from tests.support.filling import empty, free_bytes, leave_bytes, leave_inodes, prepare
from tests.support.loopfs import loop_filesystem
from tests.support.plans import plan_of
from tests.support.stores import check_store

MIB = 2**20
pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with loop_filesystem("ext4", 64, tmp_path_factory.mktemp("fs"), mkfs_options=("-m", "0", "-N", "900")) as mount:
        prepare(mount)
        yield mount


@pytest.fixture
def small_store(mount: Path) -> Store:
    """A store with five checkpoints of 3 MiB each, of two runs, on a filesystem of 64 MiB."""
    root = mount / "store"
    shutil.rmtree(root, ignore_errors=True)
    empty(mount)
    store = Store.init(root, chunk_bytes=MIB)
    for step in range(5):
        store.save(state(step), step=step, run="a" if step in (1, 4) else "b")
    return store


def state(seed: int, mib: int = 3) -> dict[str, Any]:
    return {"w": np.random.default_rng(seed).integers(0, 256, mib * MIB, dtype=np.uint8), "seed": seed}


def names(store: Store) -> list[str]:
    return [info.name for info in store.checkpoints()]


def test_the_refusal_says_what_would_free_how_much_and_that_is_what_it_frees(small_store: Store, mount: Path) -> None:
    store = small_store
    store.delete("b@0")
    carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=1), run="a"))  # a@1 waits for gc
    leave_bytes(mount, 2 * MIB)

    with pytest.raises(InsufficientSpace) as excinfo:
        store.save(state(9, mib=7), step=9)

    error = excinfo.value
    assert error.needed_bytes is not None
    assert 7 * MIB < error.needed_bytes < 7 * MIB + 64 * 1024
    assert abs((error.free_bytes or 0) - 2 * MIB) < 64 * 1024
    assert re.search(r"needs [0-9.]+ .?i?B, [0-9.]+ .?i?B are free", error.message)
    assert "ckstore gc would free 3.0 MiB, ckstore prune --keep-last 1 and then gc would free 6.0 MiB" in error.hint
    carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=1)))
    assert store.gc().freed_bytes == 6 * MIB


def test_a_disk_that_cannot_hold_it_whatever_is_dropped_is_told_so(small_store: Store, mount: Path) -> None:
    leave_bytes(mount, MIB)

    with pytest.raises(InsufficientSpace, match="That is not enough, so also free space on the filesystem"):
        small_store.save(state(9, mib=40), step=9)


def test_without_a_policy_nothing_is_dropped(small_store: Store, mount: Path) -> None:
    small_store.config.retention = RetentionPolicy(keep_last=1)  # it is for after a save
    leave_bytes(mount, MIB)
    before = names(small_store)

    with pytest.raises(InsufficientSpace):
        small_store.save(state(9), step=9)

    assert names(small_store) == before


def test_the_oldest_go_and_no_more_than_the_save_lacks(small_store: Store, mount: Path) -> None:
    store = small_store
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, 2 * MIB)

    info = Store.open(store.path).save(state(9, mib=4), run="c")

    assert names(store) == ["a@1", "b@2", "b@3", "a@4", "c@0"]
    assert info.warnings == ("dropped b@0 to make room for this save",)
    (dropped,) = (event for event in store.events() if event.event == "dropped")
    assert dropped.why == "a save needed its space; it is not the newest"
    assert np.array_equal(store.load(info)["w"], state(9, mib=4)["w"])
    check_store(store.path)


def test_what_gc_alone_can_free_drops_nothing(small_store: Store, mount: Path) -> None:
    store = small_store
    carry_out(store._context, plan_of(store, RetentionPolicy(keep_last=1), run="a"))
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, 2 * MIB)
    before = names(store)

    store.save(state(9), run="c")

    assert names(store) == [*before, "c@0"]


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_on_a_shared_filesystem_what_has_waited_is_freed_and_nothing_is_dropped(
    small_store: Store, mount: Path, tmp_path: Path
) -> None:
    small_store.close()
    store = Store.open(mount / "store", catalog_path=tmp_path / "its.db")
    store.config.make_room = RetentionPolicy(keep_last=1)
    store.delete("b@0")
    leave_bytes(mount, 2 * MIB)
    with pytest.raises(InsufficientSpace):
        store.save(state(9), run="c")
    store.config.grace_s = 0
    store.gc()  # it takes the checkpoint apart; its blobs are condemned

    store.save(state(9), run="c")

    assert names(store) == ["a@1", "b@2", "b@3", "a@4", "c@0"]
    store.close()


def test_nothing_is_dropped_when_all_of_it_would_not_be_enough(small_store: Store, mount: Path) -> None:
    store = small_store
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, MIB)
    before = names(store)

    with pytest.raises(InsufficientSpace, match="not enough"):
        store.save(state(9, mib=12), run="c")

    assert names(store) == before


def test_tags_pins_readers_and_the_newest_stay(small_store: Store, mount: Path) -> None:
    store = small_store
    store.tag("paper", "b@0")
    store.pin("a@1", "figure")
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, MIB)

    with store.open_checkpoint("b@2"), pytest.raises(InsufficientSpace):
        store.save(state(9), run="c")
    assert names(store) == ["b@0", "a@1", "b@2", "b@3", "a@4"]

    store.save(state(9), run="c")
    assert names(store) == ["b@0", "a@1", "b@3", "a@4", "c@0"]


def test_what_the_save_shares_with_a_dropped_checkpoint_is_not_freed_under_it(small_store: Store, mount: Path) -> None:
    """Most of the state is that of the checkpoint that goes first: its bytes are claimed before it is dropped."""
    store = small_store
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, 2 * MIB)
    mine = {**state(0), "more": state(9)["w"]}

    info = store.save(mine, run="c")

    assert info.new_bytes < 4 * MIB
    assert names(store) == ["b@2", "b@3", "a@4", "c@0"]  # b@0 frees nothing but its own files, a@1 does
    assert np.array_equal(store.load(info)["w"], mine["w"])
    check_store(store.path)


def test_what_the_save_shares_does_not_count_as_what_dropping_frees(small_store: Store, mount: Path) -> None:
    store = small_store
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, 2 * MIB)
    before = names(store)

    with pytest.raises(InsufficientSpace):
        store.save({**state(0), "more": state(9, mib=9)["w"]}, run="c")  # the others that may go have 6 MiB, it lacks 7

    assert names(store) == before


def test_room_is_made_for_inodes_too(small_store: Store, mount: Path) -> None:
    store = small_store
    leave_inodes(mount, 12)
    with pytest.raises(InsufficientSpace, match=r"needs \d+ inodes, \d+ are free.*would free \d+ inodes"):
        store.save(state(9, mib=6), run="c")
    store.config.make_room = RetentionPolicy(keep_last=1)

    info = store.save(state(9, mib=6), run="c")

    assert info.warnings == ("dropped b@0 to make room for this save",)


def test_a_policy_that_cannot_be_read_drops_nothing_and_is_told(small_store: Store, mount: Path) -> None:
    config = {"format": "ckstore-config", "make_room": {"keep_odd": 1}, "version": 1}
    (small_store.path / "config.json").write_text(json.dumps(config))
    leave_bytes(mount, MIB)

    with pytest.raises(InsufficientSpace, match=r"making room failed.*keep_odd"):
        small_store.save(state(9), run="c")

    assert len(names(small_store)) == 5


def test_a_disk_that_others_fill_meanwhile_is_told_with_advice(
    small_store: Store, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckstore.ops.save.save.check_space", lambda *_: ())
    leave_bytes(mount, 2 * MIB)

    with pytest.raises(InsufficientSpace, match=r"No space left on device.*prune --keep-last 1 and then gc would free"):
        small_store.save(state(9, mib=6), step=9)

    assert free_bytes(mount) > 1.9 * MIB


def test_the_advice_never_hides_the_refusal(small_store: Store, mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BadInput("a pin cannot be read")

    monkeypatch.setattr(make_room, "plan_retention", fail)
    leave_bytes(mount, MIB)

    with pytest.raises(InsufficientSpace, match="drop old checkpoints"):
        small_store.save(state(9), step=9)


def test_the_settings_are_kept_and_taken_back(store: Store) -> None:
    policy = RetentionPolicy(keep_last=3)
    assert (store.config.make_room, store.config.read_back) == (None, False)

    store.config.make_room = policy
    store.config.read_back = True

    again = Store.open(store.path)
    assert (again.config.make_room, again.config.read_back, again.config.retention) == (policy, True, None)
    store.config.make_room = None
    store.config.read_back = False
    assert (again.config.make_room, again.config.read_back) == (None, False)
    (store.path / "config.json").write_text('{"format": "ckstore-config", "read_back": 1, "version": 1}')
    with pytest.raises(BadInput, match="read_back"):
        _ = again.config.read_back


@pytest.fixture
def mirrored_store(small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store with a mirror on another filesystem that has all but its newest checkpoint."""
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    small_store.remotes.add("cold", tmp_path / "m")
    small_store.config.mirror = "cold"
    mirror = Mirror(context_of(small_store))
    while mirror.step():
        pass
    small_store.save(state(7), step=7, run="b")
    return small_store


def test_what_the_mirror_has_is_let_go_before_anything_is_dropped(mirrored_store: Store, mount: Path) -> None:
    store = mirrored_store
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, 2 * MIB)
    before = names(store)

    info = Store.open(store.path).save(state(9, mib=4), run="c")

    assert info.warnings == ("evicted the local data of b@0, which cold has, to make room for this save",)
    assert names(store) == [*before, "c@0"]
    assert [one.name for one in store.checkpoints() if one.elsewhere] == ["b@0"]
    assert np.array_equal(store.load("b@0")["w"], state(0)["w"])
    assert store.verify().ok


def test_what_is_not_enough_is_dropped_as_well_and_nothing_goes_in_vain(mirrored_store: Store, mount: Path) -> None:
    store = mirrored_store
    leave_bytes(mount, 2 * MIB)
    before = names(store)

    with pytest.raises(InsufficientSpace, match="ckstore evict --all --remote cold would free"):
        store.save(state(9, mib=20), run="c")
    assert not any(info.elsewhere for info in store.checkpoints())

    # b@7 is not at the mirror, and the policy keeps nothing of the run b but its newest whole one.
    info = store.save(state(9, mib=13), run="c")
    assert "evicted the local data of b@0, a@1, b@2, b@3" in info.warnings[0]
    assert names(store) == [*before, "c@0"]


def test_a_mirror_that_is_away_keeps_nothing_from_making_room(
    mirrored_store: Store, mount: Path, tmp_path: Path
) -> None:
    store = mirrored_store
    store.config.make_room = RetentionPolicy(keep_last=1)
    leave_bytes(mount, 2 * MIB)
    (tmp_path / "m").rename(tmp_path / "away")

    info = store.save(state(9, mib=4), run="c")

    assert "no checkpoint on cold was evicted locally" in info.warnings[0]
    assert info.warnings[1] == "dropped b@0 to make room for this save"
