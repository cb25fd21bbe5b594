"""A place in a store is reached one directory at a time: no symlink and no other filesystem on the way is followed."""

from __future__ import annotations

import errno
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore.errors import BadInput
from ckstore.fs import direct, dirfd_stat, files, holders, links, locks, statx
from ckstore.fs.dirfd_stat import NotInStore, OpenDir, StorePath, with_open_parents
from tests.support.descriptors import open_below
from tests.support.mounts import mount, unmount
from tests.support.requirements import require_root

WAY = ("a", "b", "c")
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in {".", ".."}
)


def _opened(place: StorePath) -> None:
    with files.opened(place, os.O_WRONLY | os.O_CREAT):
        pass


def _read_directly(place: StorePath) -> None:
    with direct.opened_uncached(place):
        pass


def _locked(place: StorePath) -> None:
    locks.lock_shared(place.parent).release()


def _listed(place: StorePath) -> None:
    with dirfd_stat.entries(place.parent):
        pass


ACTS: dict[str, Callable[[StorePath], object]] = {
    "link from": lambda place: links.link(place, _root_of(place) / "other"),
    "link to": lambda place: links.link(_root_of(place) / "file", place),
    "rename from": lambda place: links.rename(place, _root_of(place) / "other"),
    "rename to": lambda place: links.rename(_root_of(place) / "file", place),
    "symlink": lambda place: links.symlink("text", place),
    "make a directory": links.make_directory,
    "unlink": links.unlink,
    "remove a directory": links.remove_directory,
    "open": _opened,
    "read": lambda place: files.read_file(place, most_bytes=9),
    "read directly": _read_directly,
    "create a blob": lambda place: files.create_blob(place, memoryview(b"x")),
    "create a file": lambda place: files.create_file(place, b"x", mode=0o600),
    "allocate": lambda place: files.allocate(place, 9),
    "sync": lambda place: files.sync_directory(place.parent),
    "lock": _locked,
    "ask for a lease": holders.holding_of,
    "ask for the alignment": statx.direct_io_bytes,
    "status": dirfd_stat.status,
    "exists": dirfd_stat.exists,
    "may write": dirfd_stat.may_write,
    "names": lambda place: dirfd_stat.names(place.parent),
    "entries": _listed,
    "read a symlink": lambda place: dirfd_stat.symlink_texts(place.parent),
    "hold": lambda place: OpenDir(place.parent),
}


def _root_of(place: StorePath) -> StorePath:
    return StorePath(place.top)


def made(tmp_path: Path) -> StorePath:
    """A tree with a file in its root and one in the directory that `WAY` leads to."""
    root = tmp_path / "store"
    root.joinpath(*WAY).mkdir(parents=True)
    (root / "file").write_bytes(b"1")
    root.joinpath(*WAY, "file").write_bytes(b"2")
    return StorePath(str(root), (*WAY, "file"))


def fingerprint(folder: Path) -> list[tuple[str, int, int, int, bytes]]:
    found = []
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found.append((str(path), status.st_mode, status.st_mtime_ns, status.st_ctime_ns, content))
    return found


@pytest.mark.crossed
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("act", ACTS)
def test_a_directory_swapped_for_a_symlink_is_not_followed(act: str, level: int, tmp_path: Path) -> None:
    place = made(tmp_path)
    swapped = tmp_path.joinpath("store", *WAY[: level + 1])
    bait = tmp_path / "bait"
    swapped.rename(bait)
    swapped.symlink_to(bait)
    before = fingerprint(bait)

    with pytest.raises(NotInStore) as caught:
        ACTS[act](place)

    assert caught.value.filename == str(swapped) or caught.value.filename2 == str(place)
    assert "is a symlink" in str(caught.value)
    assert fingerprint(bait) == before


@pytest.mark.parametrize("act", ACTS)
def test_nothing_stays_open_while_the_error_of_a_look_at_what_was_opened_is_kept(
    act: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat
    for fails in count(1):
        place = made(tmp_path / str(fails))
        looks = count(1)

        def fstat(fd: int, fails: int = fails, looks: Iterator[int] = looks) -> os.stat_result:
            if next(looks) == fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(fd)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fstat", fstat)
            try:
                ACTS[act](place)
                error = None
            except OSError as caught:
                error = caught
        assert open_below(Path(place.top)) == {}, error
        if next(looks) <= fails:
            break


@pytest.mark.parametrize("act", ACTS)
def test_a_directory_of_another_filesystem_is_not_entered(act: str, tmp_path: Path) -> None:
    require_root()
    place = made(tmp_path)
    bait = tmp_path.joinpath("store", "a")
    mount(Path("none"), bait, "tmpfs")
    try:
        bait.joinpath(*WAY[1:]).mkdir(parents=True)
        bait.joinpath(*WAY[1:], "file").write_bytes(b"2")
        before = fingerprint(bait)
        with pytest.raises(NotInStore, match="another filesystem"):
            ACTS[act](place)
        assert fingerprint(bait) == before
    finally:
        unmount(bait)


@given(name=NAMES, other=NAMES)
def test_a_name_is_one_step_down(name: str, other: str) -> None:
    place = StorePath("/top") / name

    assert (place.name, place.parent, str(place)) == (name, StorePath("/top"), f"/top/{name}")
    assert (place == StorePath("/top") / other) == (name == other)
    assert hash(place) == hash(StorePath("/top") / name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "/etc", "../x", "a\0"])
def test_what_is_more_than_a_name_or_none_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="is not a valid name"):
        StorePath("/top") / name


def test_the_directory_above_the_root_is_out_of_reach() -> None:
    with pytest.raises(BadInput, match="root"):
        _ = StorePath("/top").parent


def test_functions_of_os_refuse_a_place() -> None:
    calls: list[Callable[[Any], object]] = [os.stat, os.unlink, os.listdir, os.scandir, os.mkdir, os.rmdir, open, Path]
    calls += [lambda place: os.open(place, os.O_RDONLY), lambda place: os.chmod(place, 0)]

    for call in calls:
        with pytest.raises(TypeError):
            call(StorePath("/top"))


def test_an_error_names_the_whole_path(tmp_path: Path) -> None:
    place = made(tmp_path)

    with pytest.raises(FileNotFoundError) as missing:
        dirfd_stat.status(place.parent / "none")
    assert missing.value.filename == str(place.parent / "none")
    with pytest.raises(FileNotFoundError) as above:
        dirfd_stat.status(_root_of(place) / "none" / "file")
    assert above.value.filename == str(_root_of(place) / "none")
    with pytest.raises(FileExistsError) as taken:
        links.link(place, _root_of(place) / "file")
    assert (taken.value.filename, taken.value.filename2) == (str(place), str(_root_of(place) / "file"))


def test_the_error_survives_pickling(tmp_path: Path) -> None:
    place = made(tmp_path)
    with pytest.raises(NotInStore) as caught:
        dirfd_stat.names(place)

    again = pickle.loads(pickle.dumps(caught.value))

    assert (type(again), again.filename, again.strerror) == (NotInStore, str(place), "is not a directory")


def test_a_held_directory_is_the_same_after_a_rename_and_no_use_after_it_was_closed(tmp_path: Path) -> None:
    place = made(tmp_path)
    with OpenDir(place.parent) as held:
        here = held.inside / "file"
        tmp_path.joinpath("store", "a").rename(tmp_path / "store" / "moved")
        assert files.read_file(here, most_bytes=9) == b"2"
        assert held.having("none", ["file"]) == frozenset()
    with pytest.raises(OSError, match="closed"):
        dirfd_stat.status(here)


@given(st.lists(st.tuples(st.sampled_from("abc-"), st.sampled_from("xyz")), max_size=30))
def test_places_through_their_directories_are_the_same_and_each_run_of_them_opens_one(
    wanted: list[tuple[str, str]],
) -> None:
    with TemporaryDirectory() as folder:
        for directory in "abc":
            (Path(folder) / directory).mkdir()
            for name in "xy":
                (Path(folder) / directory / name).write_text(directory + name)
        places = [StorePath(folder, (directory, name)) for directory, name in wanted]
        seen = []
        for index, place in with_open_parents(enumerate(places)):
            assert place == places[index]
            assert len(open_below(Path(folder))) == (wanted[index][0] != "-")
            seen.append(dirfd_stat.exists(place) and files.read_file(place, most_bytes=9).decode())
        assert seen == [name != "z" and directory != "-" and directory + name for directory, name in wanted]
        assert not open_below(Path(folder))


_KINDS = ("whole", "annotated", "without", "file", "symlink", "missing")


@given(st.lists(st.sampled_from(_KINDS), max_size=40))
def test_a_look_into_many_directories_says_of_each_what_is_there(kinds: list[str]) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "elsewhere").mkdir()
        (root / "elsewhere/manifest").touch()
        names = [f"{n}-{kind}" for n, kind in enumerate(kinds)]
        for name, kind in zip(names, kinds, strict=True):
            place = root / name
            if kind == "symlink":
                place.symlink_to("elsewhere")
            elif kind == "file":
                place.touch()
            elif kind != "missing":
                place.mkdir()
                for file in {"whole": ("manifest",), "annotated": ("manifest", "more")}.get(kind, ()):
                    (place / file).touch()
        with OpenDir(StorePath(folder)) as held:
            found = held.look_into(names, "manifest", ("more",))
        assert not open_below(root)
        assert {
            name: (status.st_ino if status is not None else None, sorted(has)) for name, (status, has) in found.items()
        } == {
            name: (
                (root / name / "manifest").stat().st_ino if kind != "without" else None,
                ["more"] * (kind == "annotated"),
            )
            for name, kind in zip(names, kinds, strict=True)
            if kind in ("whole", "annotated", "without")
        }


def test_a_locked_directory_keeps_others_open_as_long_as_the_lock(tmp_path: Path) -> None:
    place = made(tmp_path)
    lock = locks.lock_shared(_root_of(place) / "a")
    kept = lock.keep(lock.inside / "b")
    assert dirfd_stat.exists(kept.inside / "c")

    lock.release()

    for closed in (lock.fd, kept.fd):
        with pytest.raises(OSError, match="Bad file descriptor"):  # and not the names in the working directory
            os.listdir(closed)
    with pytest.raises(OSError, match="closed"):
        dirfd_stat.exists(lock.inside / "b")


def test_the_mode_of_a_new_directory_is_not_given_to_what_was_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = made(tmp_path).parent / "new"
    bait = tmp_path / "bait"
    bait.mkdir(mode=0o711)
    mkdir = os.mkdir

    def swapping(name: str, mode: int, *, dir_fd: int | None) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        os.rmdir(name, dir_fd=dir_fd)
        os.symlink(bait, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", swapping)
    with pytest.raises(NotInStore):
        links.make_directory(place, mode=0o750)

    assert stat.S_IMODE(bait.stat().st_mode) == 0o711
