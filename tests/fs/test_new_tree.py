"""A tree that is built beside its destination: what others left there is in no one's way, and is not touched."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.errors import BadInput, CkstoreError
from ckstore.fs import files, locks, new_tree
from ckstore.fs.new_tree import NewTree
from tests.support.descriptors import open_below
from tests.support.requirements import require_root
from tests.support.users import User, common_folder, users

BUILD = """
import sys
from pathlib import Path
from ckstore.fs.new_tree import NewTree
with NewTree.beside(Path(sys.argv[1])) as tree:
    tree.make_directory("sub", 0o755)
    with tree.create_file("sub/file") as fd:
        fd  # empty
    tree.publish()
"""


@pytest.fixture
def sticky() -> Iterator[tuple[Path, User, User]]:
    """A directory as /tmp is, and two users."""
    with common_folder() as folder:
        place = folder / "tmp"
        place.mkdir()
        place.chmod(0o1777)
        one, two = users(folder)
        yield place, one, two


def build(destination: Path) -> None:
    with NewTree.beside(destination) as tree, tree.create_file("file"):
        pass


def publish(destination: Path) -> None:
    with NewTree.beside(destination) as tree:
        with tree.create_file("file"):
            pass
        tree.publish()


LEFT = {
    "a directory that all may read": "mkdir {0} && touch {0}/x && chmod 755 {0}",
    "an empty directory that all may change": "mkdir {0} && chmod 777 {0}",
    "a directory that no other user may enter": "mkdir -m 0 {0}",
    "a file": "touch {0} && chmod 666 {0}",
    "a pipe": "mkfifo {0}",
    "a symlink to nowhere": "ln -s nowhere {0}",
    "a symlink to itself": "ln -s $(basename {0}) {0}",
    "a symlink to a directory of the other": "ln -s {1} {0}",
    "a locked directory": "mkdir -m 755 {0} && (flock -s {0} sleep 100 &) ",
}


@pytest.mark.parametrize("what", LEFT)
def test_what_another_user_left_under_such_a_name_blocks_nothing_and_stays(
    what: str, sticky: tuple[Path, User, User]
) -> None:
    place, one, two = sticky
    left = place / ".out.ckstore-0123456789ab"
    (two.home / "precious").touch()
    script = LEFT[what].replace("sleep 100", "sleep 2").format(left, two.home)
    assert one.run("sh", "-ec", f"umask 022; {script}").returncode == 0
    before = left.lstat()

    two.python(BUILD, place / "out")

    assert (place / "out/sub/file").stat().st_uid == two.uid
    assert left.lstat().st_ino == before.st_ino
    assert left.lstat().st_mode == before.st_mode
    assert (two.home / "precious").exists()


def test_a_directory_in_which_nothing_can_be_listed_takes_a_tree(sticky: tuple[Path, User, User]) -> None:
    place, one, _ = sticky
    place.chmod(0o1733)

    one.python(BUILD, place / "out")

    assert (place / "out/sub/file").exists()


def test_root_leaves_what_other_users_left(sticky: tuple[Path, User, User]) -> None:
    place, one, _ = sticky
    left = place / ".out.ckstore-0123456789ab"
    assert one.run("mkdir", "-p", left / "sub").returncode == 0

    publish(place / "out")

    assert (left / "sub").exists()


def test_a_leftover_of_this_user_goes_whatever_its_permissions(sticky: tuple[Path, User, User]) -> None:
    place, one, _ = sticky
    left = place / ".out.ckstore-0123456789ab"
    script = "mkdir -p a/b c && touch a/b/x y && ln -s / a/l && chmod 0 a/b a c"
    assert one.run("sh", "-ec", f"mkdir {left} && cd {left} && {script}").returncode == 0

    one.python(BUILD, place / "out")

    assert sorted(os.listdir(place)) == ["out"]


@given(drawn=st.lists(st.booleans(), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_names_are_drawn_until_one_is_free(
    drawn: list[bool], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path_factory.mktemp("place")
    names = [f"{number:012x}" for number in range(len(drawn))]
    for name, is_directory in zip(names, drawn, strict=True):
        path = place / f".out.ckstore-{name}"
        path.mkdir() if is_directory else path.touch()
    there = sorted(os.listdir(place))
    waiting = iter([*names, "f" * 12])

    with monkeypatch.context() as patch:
        patch.setattr(new_tree, "remove_dead", lambda _: None)
        patch.setattr(secrets, "token_hex", lambda _: next(waiting))
        publish(place / "out")

    assert sorted(os.listdir(place)) == sorted([*there, "out"])


def test_a_place_where_no_name_is_free_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".out.ckstore-taken").touch()
    monkeypatch.setattr(secrets, "token_hex", lambda _: "taken")

    with pytest.raises(BadInput, match="or existed already"):
        build(tmp_path / "out")


@pytest.mark.parametrize("depth", [0, 3, 1500])
def test_a_tree_that_is_given_up_is_removed_whatever_its_depth(depth: int, tmp_path: Path) -> None:
    with NewTree.beside(tmp_path / "out") as tree:
        fd = os.open(tree.path, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(depth):
            os.mkdir("d", dir_fd=fd)
            os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.close(fd)

    assert beside(tmp_path) == []


@pytest.mark.parametrize("call", ["listdir", "stat", "unlink", "rmdir"])
@pytest.mark.parametrize("done", [False, True])
def test_a_call_that_fails_once_while_a_tree_is_given_up_leaves_nothing_of_it(
    call: str, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(os, call)
    failed: list[str] = []

    def stale(*arguments: Any, **more: Any) -> Any:
        if failed:
            return real(*arguments, **more)
        failed.append(call)
        if done:
            real(*arguments, **more)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with suppress(KeyError), NewTree.beside(tmp_path / "out") as tree:
        with tree.create_file("file"):
            pass
        monkeypatch.setattr(os, call, stale)
        raise KeyError
    monkeypatch.undo()

    assert failed == [call]
    assert beside(tmp_path) == []


def beside(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != ".home")


def test_what_fails_at_the_beginning_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its error is kept, a tree that was begun stays locked, and no later one removes it."""

    def failing() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(new_tree, "_umask", failing)
    with pytest.raises(OSError, match="Too many open files") as kept:
        NewTree.beside(tmp_path / "out")

    assert not list(tmp_path.glob(".out*")), kept


def test_what_the_new_directory_does_not_tell_leaves_it_neither_open_nor_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = os.fstat, list[int]()

    def failing(fd: int) -> os.stat_result:
        if ".ckstore-" in os.readlink(f"/proc/self/fd/{fd}"):
            asked.append(fd)
            if len(asked) == 2:  # the lock asks first
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd)

    monkeypatch.setattr(os, "fstat", failing)
    with pytest.raises(OSError, match="Input/output error"):
        NewTree.beside(tmp_path / "out")

    assert len(asked) == 2
    assert open_below(tmp_path) == {}


def test_what_is_put_in_the_place_of_a_tree_that_is_given_up_stays(tmp_path: Path) -> None:
    """In a directory without the sticky bit another user may swap the names of this one's directories."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").touch()

    tree = NewTree.beside(tmp_path / "out")
    with tree.create_file("file"):
        pass
    tree.path.rename(tmp_path / "aside")
    (tmp_path / "mine").rename(tree.path)
    with pytest.raises(OSError, match="not empty"):
        tree.__exit__(None, None, None)

    assert (tree.path / "precious").exists()
    assert os.listdir(tmp_path / "aside") == []


def test_a_directory_of_another_user_in_the_place_of_the_new_one_is_not_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root()
    real = os.mkdir
    swapped: list[Path] = []

    def mkdir(path: Any, *arguments: Any, **more: Any) -> None:
        real(path, *arguments, **more)
        if not swapped:
            os.chown(path, 70_001, 70_001)
            swapped.append(Path(path))

    monkeypatch.setattr(os, "mkdir", mkdir)
    publish(tmp_path / "out")
    monkeypatch.undo()

    assert os.listdir(swapped[0]) == []
    assert sorted(os.listdir(tmp_path / "out")) == ["file"]


def test_a_leftover_that_breaks_while_it_is_removed_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / ".out.ckstore-0123456789ab"
    left.mkdir()

    def broken(path: Path, lock: locks.DirectoryLock) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(new_tree, "_remove", broken)
    publish(tmp_path / "out")

    assert left.exists()


@pytest.mark.parametrize("as_file", [False, True])
def test_what_is_there_but_may_not_survive_a_power_cut_is_said_to_be_there(
    as_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with NewTree.beside(tmp_path / "out") as tree:
        with tree.create_file("file"):
            pass
        monkeypatch.setattr(files, "sync_name", fails)
        with pytest.raises(CkstoreError, match=r"out is complete, but may not survive a power cut: Input/output"):
            (tree.publish_file if as_file else lambda _: tree.publish())("file")

    assert (tmp_path / "out" if as_file else tmp_path / "out" / "file").is_file()
    assert [path.name for path in tmp_path.glob("*out*")] == ["out"]
