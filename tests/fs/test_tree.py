"""A folder of another program is walked by descriptors: no symlink is followed, whatever changes meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckstore.errors import StateChanged
from ckstore.fs import tree
from ckstore.fs.dirfd_stat import NotInStore
from tests.support.mounts import mount, unmount
from tests.support.requirements import require_root


def _folder(top: Path) -> Path:
    (top / "in" / "a").mkdir(parents=True)
    (top / "in" / "a" / "file").write_bytes(b"own")
    (top / "out").mkdir()
    (top / "out" / "file").write_bytes(b"not")
    return top / "in"


def _swap(path: Path) -> None:
    """Put a symlink to a directory elsewhere in the place of a directory."""
    path.rename(path.with_name("moved"))
    path.symlink_to(path.parents[1] / "out")


def test_a_directory_swapped_for_a_symlink_is_neither_walked_into_nor_read_from(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    walked = tree.walk(tree.foreign(folder))
    entries = [next(walked)]
    _swap(folder / "a")

    with pytest.raises(NotInStore, match="is a symlink"):
        entries += walked
    assert [entry.path for entry in entries] == ["a"]


def test_a_file_whose_directory_was_swapped_for_a_symlink_has_changed(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (file,) = (entry for entry in tree.walk(tree.foreign(folder)) if entry.kind == "file")
    assert file.content() == b"own"
    _swap(folder / "a")

    with pytest.raises(StateChanged, match="a/file was changed"):
        file.content()


def test_a_folder_of_another_program_may_have_filesystems_mounted_in_it(tmp_path: Path) -> None:
    require_root()
    folder = _folder(tmp_path)
    mount(Path("none"), folder / "a", "tmpfs")
    try:
        (folder / "a" / "deep").mkdir()
        (folder / "a" / "deep" / "file").write_bytes(b"mounted")
        read = {entry.path: entry.content() for entry in tree.walk(tree.foreign(folder)) if entry.kind == "file"}
    finally:
        unmount(folder / "a")

    assert read == {"a/deep/file": b"mounted"}


def test_a_pipe_and_a_device_are_named_for_what_they_are(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert tree.kind_of(os.stat(tmp_path / "pipe").st_mode) == "a named pipe"
    assert tree.kind_of(os.stat("/dev/zero").st_mode) == "a device"
    assert tree.kind_of(os.lstat("/proc/self/exe").st_mode) == "a symlink"
