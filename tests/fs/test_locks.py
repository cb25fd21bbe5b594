"""A lock is on the directory that the path names, and ends with its holder (laws L1 and L2 of docs/protocol.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ckstore.fs import locks


def test_a_lock_is_on_the_directory_that_the_path_names_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking it another process renames it away and makes a new one."""
    path = tmp_path / "directory"
    path.mkdir()
    real = locks._wait_for
    moved: list[Path] = []

    def after_a_rename(*arguments: Any) -> None:
        if not moved:
            moved.append(path.rename(tmp_path / "elsewhere"))
            path.mkdir()
        real(*arguments)

    monkeypatch.setattr(locks, "_wait_for", after_a_rename)
    with locks.lock_shared(path) as lock:
        locked = os.fstat(lock.fd).st_ino

    assert moved
    assert locked == path.stat().st_ino


def test_an_error_while_a_lock_was_let_go_is_not_lost_behind_one_of_the_lock(tmp_path: Path) -> None:
    taken = []

    def interrupted(lock: locks.DirectoryLock) -> None:
        with lock.let_go(timeout_s=0.01):
            taken.append(locks.try_exclusive(tmp_path))
            raise KeyboardInterrupt

    with locks.lock_shared(tmp_path) as lock:
        with pytest.raises(KeyboardInterrupt):
            interrupted(lock)
        (other,) = taken
        assert other is not None
        other.release()


def test_others_have_a_lock_that_was_let_go_and_what_they_took_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "directory"
    path.mkdir()
    with locks.lock_shared(path) as lock:
        with lock.let_go():
            assert not locks.is_locked(path)
        assert locks.try_exclusive(path) is None

        resting = lock.let_go()
        resting.__enter__()
        path.rename(tmp_path / "elsewhere")
        path.mkdir()
        with pytest.raises(FileNotFoundError, match="replaced meanwhile"):
            resting.__exit__(None, None, None)

        other = locks.try_exclusive(path)
        assert other is not None
        other.release()


def test_a_lock_ends_with_its_holder_though_a_child_lives_on(tmp_path: Path) -> None:
    done, go_on = os.pipe()
    runs, says = os.pipe()
    holder = os.fork()
    if holder == 0:
        locks.lock_shared(tmp_path)
        if os.fork() == 0:
            os.close(go_on)
            os.write(says, b"x")  # the fork is over, and with it what is done in a child
            os.read(done, 1)
        os._exit(0)  # as if killed: nothing is released
    os.close(done)
    os.close(says)
    os.waitpid(holder, 0)
    heard = os.read(runs, 1)
    os.close(runs)

    taken = locks.try_exclusive(tmp_path)
    os.close(go_on)

    assert heard == b"x"
    assert taken is not None
    taken.release()
