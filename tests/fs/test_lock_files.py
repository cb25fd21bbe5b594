"""Locks on files: one holder alone or many together, and a lock that was lost is found out."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ckstore.errors import InUse, UnsafePlace
from ckstore.fs import links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.lock_files import LockFile, is_locked


@pytest.fixture
def place(tmp_path: Path) -> StorePath:
    return StorePath(str(tmp_path)) / "run-main"


def take(place: StorePath, *, exclusive: bool = True) -> LockFile:
    return LockFile.take(place, exclusive=exclusive, timeout_s=0.0)


def test_one_alone_or_many_together(place: StorePath) -> None:
    first, second = take(place, exclusive=False), take(place, exclusive=False)
    with pytest.raises(InUse, match="locked by another process"):
        take(place)
    first.close()
    second.close()
    second.close()

    alone = take(place)
    for exclusive in (True, False):
        with pytest.raises(InUse, match="locked by another process"):
            take(place, exclusive=exclusive)
    alone.check()
    alone.close()


@pytest.mark.parametrize("exclusive", [True, False])
def test_what_others_do_after_it_ends_is_not_a_loss_for_the_next(place: StorePath, *, exclusive: bool) -> None:
    take(place).close()
    held = take(place, exclusive=exclusive)
    held.check()
    held.check()
    held.close()


def forgotten(lock: LockFile) -> None:
    """As by a lock server that was restarted."""
    fcntl.flock(lock._fd, fcntl.LOCK_UN)


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_lock_that_another_has_now_is_lost(place: StorePath, *, exclusive: bool) -> None:
    lost = take(place, exclusive=exclusive)
    forgotten(lost)
    other = take(place)
    with pytest.raises(InUse, match="was lost: another process holds it, and nothing was changed"):
        lost.check()
    lost.close()
    other.check()
    other.close()


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_lock_that_another_had_meanwhile_is_lost(place: StorePath, *, exclusive: bool) -> None:
    lost = take(place, exclusive=exclusive)
    forgotten(lost)
    take(place).close()
    with pytest.raises(InUse, match="was lost: another process held it meanwhile"):
        lost.check()
    lost.close()


def test_a_lock_that_no_other_had_meanwhile_is_held_again(place: StorePath) -> None:
    lock = take(place)
    forgotten(lock)
    lock.check()
    with pytest.raises(InUse):
        take(place)
    lock.close()


@pytest.mark.parametrize("again", [True, False])
def test_a_file_that_was_replaced_or_removed_is_a_lost_lock(place: StorePath, *, again: bool) -> None:
    lock = take(place)
    os.unlink(place.path)
    if again:
        take(place).close()
    with pytest.raises(InUse, match="was lost"):
        lock.check()
    lock.close()


def test_a_file_without_a_mark_that_was_replaced_by_another_is_a_lost_lock(place: StorePath) -> None:
    lock = take(place, exclusive=False)
    os.unlink(place.path)
    take(place, exclusive=False).close()
    with pytest.raises(InUse, match="was lost"):
        lock.check()
    lock.close()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO, errno.ESTALE])
def test_a_lock_server_that_fails_is_said(place: StorePath, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held = take(place)
    monkeypatch.setattr(fcntl, "flock", refusing(code))
    with pytest.raises(InUse, match=f"cannot be locked: {os.strerror(code)}"):
        take(place)
    with pytest.raises(InUse, match="was lost"):
        held.check()
    held.close()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_files_have_no_locks_there_is_none(place: StorePath, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(code))
    lock = take(place)
    lock.check()
    lock.close()


def test_the_file_is_as_private_as_its_directory(place: StorePath) -> None:
    folder = Path(place.path).parent
    for mode in (0o2770, 0o700):
        folder.chmod(mode)
        take(place).close()
        assert os.stat(place.path).st_mode & 0o777 == mode & 0o666
        os.unlink(place.path)
    assert not any(name.startswith(".new-") for name in os.listdir(folder))


def test_one_that_is_swept_while_it_is_made_is_made_again(place: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stood still for longer than the grace, before or after it gave the file its name."""
    link, swept = links.link, 0

    def sweeping(old: StorePath, new: StorePath) -> None:
        nonlocal swept
        swept += 1
        if swept == 1:
            os.unlink(old.path)
        link(old, new)
        os.unlink(old.path)

    monkeypatch.setattr(links, "link", sweeping)
    with closing(take(place)) as lock:
        lock.check()
    assert swept == 2


def test_the_mark_is_durable_when_the_lock_is_held(place: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.pread(fd, 100, 0)))

    with closing(take(place)):
        assert synced == [place.path.read_bytes()]
        assert synced != [b""]


def test_a_lock_that_its_owner_never_got_is_released(place: StorePath) -> None:
    lock = take(place)
    del lock
    take(place).close()


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_keeps_no_process_from_locking(
    place: StorePath, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    lock = take(place)
    lock.check()
    lock.close()


def refusing(code: int) -> Callable[[int, int], None]:
    def flock(fd: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    return flock


def test_a_forked_child_releases_nothing_and_the_next_lock_waits_for_its_holder(place: StorePath) -> None:
    lock = take(place)
    child = os.fork()
    if child == 0:
        lock.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(InUse):
        take(place)
    lock.close()
    take(place).close()


def temporary(place: StorePath) -> list[str]:
    """Return the names that a lock file has before its own one."""
    return [path.name for path in place.parent.path.glob(".new-*")]


def test_a_file_that_is_made_is_its_makers_from_the_first_moment(place: StorePath) -> None:
    with closing(LockFile.make(place, b"mine")):
        assert is_locked(place)
        assert Path(str(place)).read_bytes() == b"mine"
        with pytest.raises(FileExistsError):
            LockFile.make(place, b"another")
    assert not is_locked(place)
    assert temporary(place) == []
    with pytest.raises(FileExistsError):
        LockFile.make(place, b"another")
    assert temporary(place) == []


def test_two_that_ask_at_once_do_not_take_each_other_for_the_owner(place: StorePath) -> None:
    LockFile.make(place, b"").close()
    fd = os.open(str(place), os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)  # as who asks has it for a moment

        assert not is_locked(place)
    finally:
        os.close(fd)


def test_a_file_that_gc_took_for_a_dead_ones_is_made_again(place: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    link, swept = links.link, 0

    def sweep_first(source: StorePath, target: StorePath) -> None:
        nonlocal swept
        if swept < 2:
            swept += 1
            links.unlink(source)
        link(source, target)

    monkeypatch.setattr(links, "link", sweep_first)
    with closing(LockFile.make(place, b"mine")):
        assert is_locked(place)
    swept = -100
    with pytest.raises(InUse, match="was removed 100 times"):
        LockFile.make(place.parent / "other", b"")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_that_cannot_be_locked_is_not_made(
    place: StorePath, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UnsafePlace if number == errno.ENOSYS else InUse, match="cannot be locked"):
        LockFile.make(place, b"")
    assert temporary(place) == []
