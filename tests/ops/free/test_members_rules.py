"""Whose checkpoints a rule is for: those of the member who set it, or all if the owner of the store set it.

The user of this process is given as data, and owners by `chown`; `tests/ops/test_group.py` has real users.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ckstore import BadInput, Budget, RetentionPolicy, Store
from ckstore.fs import dirfd_stat
from ckstore.ops.config_file import make_room_of, read_config
from ckstore.store import context_of
from tests.ops.free.test_superseded import two_of_step
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.plans import plan_of

pytestmark = pytest.mark.root
_OWNER, _ONE, _THREE = 1000, 1001, 1003


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(100_000, step)}


@pytest.fixture
def user(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what lets this process count as a user; the store belongs to its owner."""
    os.chown(store.path, _OWNER, -1)

    def become(uid: int) -> None:
        monkeypatch.setattr(dirfd_stat, "current_user", lambda: uid)

    return become


def save(store: Store, uid: int, *steps: int, run: str = "main") -> None:
    """Save checkpoints that belong to a user."""
    for step in steps:
        store.save(state(step), step=step, run=run)
        if any(info.step == step for info in store.checkpoints(run)):
            os.chown(checkpoint_dir(store.path, run, step), uid, -1)


def steps(store: Store, run: str = "main") -> list[int]:
    return [info.step for info in store.checkpoints(run)]


def test_the_saves_of_other_users_do_not_carry_out_the_rule_of_a_member(
    store: Store, user: Callable[[int], None]
) -> None:
    user(_ONE)
    save(store, _ONE, 1, 2, 3)
    user(_THREE)
    store.config.retention = RetentionPolicy(keep_last=1)
    user(_ONE)
    save(store, _ONE, 4)
    assert steps(store) == [1, 2, 3, 4]
    assert read_config(context_of(store).layout)["set_by"] == {"retention": _THREE}
    with pytest.raises(BadInput, match="no retention policy"):
        plan_of(store)

    user(_THREE)
    save(store, _THREE, 5, 6)
    store.save(state(7), step=7)

    # Of the member's own all but the newest; what others saved is not looked at.
    assert {1, 2, 3, 4} < set(steps(store))
    assert 5 not in steps(store)


@pytest.mark.parametrize("who", [_OWNER, 0])
def test_the_rule_of_the_owner_of_the_store_is_for_all(store: Store, user: Callable[[int], None], who: int) -> None:
    user(_ONE)
    save(store, _ONE, 1, 2, 3)
    user(who)
    store.config.retention = RetentionPolicy(keep_last=1)
    user(_THREE)
    store.save(state(4), step=4)
    assert steps(store) == [4]
    assert "set_by" not in read_config(context_of(store).layout)


def test_under_the_sticky_bit_the_owner_of_the_file_set_the_rule_whatever_it_says(
    store: Store, user: Callable[[int], None]
) -> None:
    user(_ONE)
    save(store, _ONE, 1, 2)
    user(_OWNER)
    store.config.retention = RetentionPolicy(keep_last=1)
    os.chown(store.path / "config.json", _THREE, -1)
    user(_ONE)
    store.path.chmod(0o3770)

    save(store, _ONE, 3)

    assert steps(store) == [1, 2, 3]
    store.path.chmod(0o2770)
    store.save(state(4), step=4)
    assert steps(store) == [4]


def test_a_budget_of_a_member_counts_and_drops_what_that_member_saved(
    store: Store, user: Callable[[int], None]
) -> None:
    user(_ONE)
    save(store, _ONE, 1, 2, run="one")
    user(_THREE)
    save(store, _THREE, 1, 2, 3, run="three")
    store.config.budget = Budget(2_000_000)
    user(_ONE)
    save(store, _ONE, 3, run="one")
    assert (steps(store, "one"), steps(store, "three")) == ([1, 2, 3], [1, 2, 3])

    user(_THREE)
    plan = plan_of(store)

    assert [entry.info.name for entry in plan.dropped] == ["three@1"]
    assert {entry.run for entry in plan.entries} == {"three"}


def test_a_budget_counts_each_file_of_equal_content(store: Store, user: Callable[[int], None]) -> None:
    for step in (1, 2, 3):  # of each the blob has a file of its own, as after saves of three users
        store.save(state(0), step=step)
        (blob,) = blobs_dir(store.path, "main", step).iterdir()
        status, data = blob.stat(), blob.read_bytes()
        blob.unlink()
        blob.write_bytes(data)
        blob.chmod(stat.S_IMODE(status.st_mode))
        os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    store.config.budget = Budget(2_000_000)
    user(_ONE)

    assert [entry.info.name for entry in plan_of(store).dropped] == ["main@1"]
    store.save(state(0), step=4)
    assert steps(store) == [3, 4]


def test_the_budget_of_a_member_drops_nothing_while_only_others_exceed_it(
    store: Store, user: Callable[[int], None]
) -> None:
    store.config.undo_by_hand_s = 86400
    user(_ONE)
    save(store, _ONE, 1, 2, 3, run="one")
    user(_THREE)
    store.config.budget = Budget(2_500_000)
    older, _ = two_of_step(store)
    assert older.superseded
    os.chown(store.path / f"checkpoints/main/{older.directory}", _THREE, -1)

    save(store, _THREE, 2, run="three")

    assert older.id in [info.id for info in store.checkpoints(superseded=True)]


def test_a_member_s_rule_for_a_run_leaves_the_owner_s_default_to_all_others(
    store: Store, user: Callable[[int], None]
) -> None:
    user(_OWNER)
    store.config.retention = RetentionPolicy(keep_last=2)
    user(_THREE)
    store.config.retention_by_run = {"g*": RetentionPolicy(keep_last=1)}
    user(_ONE)
    save(store, _ONE, 1, 2, 3, run="gpt")
    assert steps(store, "gpt") == [2, 3]  # the rule of another member does not count here, so the default holds
    user(_THREE)
    save(store, _THREE, 4, run="gpt")
    store.save(state(5), run="gpt", step=5)
    assert steps(store, "gpt")[:2] == [2, 3]
    assert store.config.retention_by_run == {"g*": RetentionPolicy(keep_last=1)}


def test_what_a_member_lets_be_dropped_for_space_is_for_that_member(store: Store, user: Callable[[int], None]) -> None:
    layout = context_of(store).layout
    user(_THREE)
    store.config.make_room = RetentionPolicy(keep_last=1)
    assert make_room_of(layout) == (RetentionPolicy(keep_last=1), True)
    user(_ONE)
    assert make_room_of(layout) == (None, False)
    user(_OWNER)
    assert make_room_of(layout) == (None, False)
    store.config.make_room = RetentionPolicy(keep_last=2)
    user(_ONE)
    assert make_room_of(layout) == (RetentionPolicy(keep_last=2), False)
    store.config.make_room = None
    assert make_room_of(layout) == (None, False)
    assert "set_by" not in read_config(layout)


def test_gc_now_of_a_member_ends_the_undo_of_that_member_alone(store: Store, user: Callable[[int], None]) -> None:
    store.config.undo_by_hand_s = 86400
    user(_ONE)
    save(store, _ONE, 1, 2)
    user(_THREE)
    save(store, _THREE, 3, 4)
    for step in (1, 3):
        store.delete(step)

    forecast = store.gc(dry_run=True, now=True)
    report = store.gc(now=True)

    assert [one.step for one in forecast.waiting] == [one.step for one in report.waiting] == [1]
    assert [one.step for one in store.undoable()] == [1]
    store.undo("main@1")
    assert np.array_equal(store.load(1)["w"], state(1)["w"])
    store.delete(1)
    user(0)
    store.gc(now=True)
    assert store.undoable() == ()


def test_gc_now_of_a_member_leaves_superseded_checkpoints_of_other_members(
    store: Store, user: Callable[[int], None]
) -> None:
    store.config.undo_by_hand_s = 86400
    user(_ONE)
    older, _ = two_of_step(store)
    os.chown(store.path / f"checkpoints/main/{older.directory}", _ONE, -1)
    user(_THREE)
    store.gc(now=True)
    assert next(info.id for info in store.checkpoints(superseded=True)) == older.id
    user(_ONE)
    store.gc(now=True)
    assert older.id not in [info.id for info in store.checkpoints(superseded=True)]
