"""Stores with names, numbers and depths of directories that a store never makes."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tests.hostile.archives_links import FOLDERS
from tests.hostile.scene import Builder, Scene
from tests.support.checkpoint_dirs import path_in_store

_LEVELS = 1200
_MANY = 100_000
_SOME = 2_000


def _deep(name: str) -> Builder:
    """A folder in a folder, 1,200 times: deeper than a path may be long with names of ten characters."""

    def build(scene: Scene) -> None:
        fd = os.open(path_in_store(scene.store, name), os.O_RDONLY | os.O_DIRECTORY)
        for level in range(_LEVELS):
            own = "x" if level == 0 else "levellevel"
            if own not in os.listdir(fd):
                os.mkdir(own, dir_fd=fd)
            below = os.open(own, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        os.close(fd)

    return build


def _many_files(name: str, form: str, count: int = _MANY) -> Builder:
    """So many empty files in one folder."""

    def build(scene: Scene) -> None:
        folder = path_in_store(scene.store, name)
        folder.mkdir(parents=True, exist_ok=True)
        with _cwd(folder) as fd:
            for i in range(count):
                os.close(os.open(form.format(i=i), os.O_WRONLY | os.O_CREAT, dir_fd=fd))

    return build


def _many_folders(name: str, form: str, count: int = _SOME) -> Builder:
    def build(scene: Scene) -> None:
        with _cwd(path_in_store(scene.store, name)) as fd:
            for i in range(1000, 1000 + count):
                os.mkdir(form.format(i=i), dir_fd=fd)

    return build


def _many_links(name: str, form: str, target: str, count: int = _MANY) -> Builder:
    def build(scene: Scene) -> None:
        with _cwd(path_in_store(scene.store, name)) as fd:
            for i in range(count):
                os.symlink(target.format(i=i), form.format(i=i), dir_fd=fd)

    return build


class _cwd:  # noqa: N801 - a context manager
    """A folder as a descriptor."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _odd_names(*names: bytes) -> Builder:
    """Files and folders of these names in every folder, and a run, a step, a tag and a pin of each."""

    def build(scene: Scene) -> None:
        for folder in ("", *FOLDERS, "blobs/ab"):
            path = os.fsencode(path_in_store(scene.store, folder))
            os.makedirs(path, exist_ok=True)
            for i, name in enumerate(names):
                if i % 2:
                    os.mkdir(path + b"/" + name)
                else:
                    Path(os.fsdecode(path + b"/" + name)).write_text("odd")
        for name in names:
            own = os.fsdecode(name)
            shutil.copytree(scene.checkpoint, scene.store / "checkpoints" / f"{own}-run" / "4")
            (scene.store / "refs" / f"{own}-tag").symlink_to(f"../checkpoints/{own}-run/4")
            shutil.copy(scene.store / "pins" / "figure.json", scene.store / "pins" / f"{own}-pin.json")

    return build


def _modes(files: int, folders: int) -> Builder:
    def build(scene: Scene) -> None:
        for where, names, own in os.walk(scene.store, topdown=False):
            for name in own:
                if not os.path.islink(f"{where}/{name}"):
                    os.chmod(f"{where}/{name}", files)
            for name in names:
                os.chmod(f"{where}/{name}", folders)

    return build


def _one_mode(name: str, mode: int) -> Builder:
    def build(scene: Scene) -> None:
        os.chmod(path_in_store(scene.store, name), mode)

    return build


def _setuid(scene: Scene) -> None:
    for where, _, names in os.walk(scene.store):
        for name in names:
            path = f"{where}/{name}"
            if not os.path.islink(path):
                os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o6111)


def _old_times(scene: Scene) -> None:
    for where, folders, names in os.walk(scene.store):
        for name in (*folders, *names):
            os.utime(f"{where}/{name}", (2**33, 2**33), follow_symlinks=False)


CASES: dict[str, Builder] = {
    **{f"1200 levels in {name}": _deep(name) for name in ("", *FOLDERS)},
    "1200 levels in a staging": _deep("staging"),
    "100000 files in trash": _many_files("trash", "f{i}"),
    "100000 files in a folder in trash": _many_files("trash/main@7", "f{i}"),
    "100000 files in staging": _many_files("staging", "f{i}"),
    "100000 files in reserve": _many_files("reserve", "f{i}"),
    "100000 files in the store": _many_files("", "f{i}"),
    "100000 files in a fan-out folder": _many_files("blobs/ab", "xxh3-ab{i:030x}"),
    "100000 files in a checkpoint": _many_files("checkpoints/main/2", "f{i}"),
    "100000 files in its blobs": _many_files("checkpoints/main/2/blobs", "xxh3-{i:032x}"),
    "100000 names in a run": _many_files("checkpoints/main", "f{i}"),
    "2000 pins that cannot be read": _many_files("pins", "p{i}.json", _SOME),
    "100000 tags of nothing": _many_links("refs", "t{i}", "../checkpoints/main/{i}"),
    "100000 tags of one checkpoint": _many_links("refs", "t{i}", "../checkpoints/main/2"),
    "2000 steps without anything": _many_folders("checkpoints/main", "{i}"),
    "2000 runs without anything": _many_folders("checkpoints", "run{i}"),
    "2000 folders in trash": _many_folders("trash", "main@{i}"),
    "2000 folders in staging": _many_folders("staging", "main@{i}.x"),
    "names with newlines": _odd_names(b"a\nb", b"\n", b"error: all is well\nhint: ", b"\x1b[31m\x07"),
    "names that are no UTF-8": _odd_names(b"\xff\xfe", b"\xc3", b"\xed\xa0\x80"),
    "names of 200 bytes": _odd_names(b"x" * 200, "é".encode() * 100),
    "names that look like options": _odd_names(b"-rf", b"--help", b"~", b"*", b"$HOME"),
    "every bit of permissions": _modes(0o7777, 0o7777),
    "no permissions at all": _modes(0, 0),
    "no files may be read": _modes(0, 0o755),
    "setuid everywhere": _setuid,
    "times of the far future": _old_times,
    **{f"{name} may not be entered": _one_mode(name, 0) for name in FOLDERS},
    "store.json may not be read": _one_mode("store.json", 0),
    "catalog.db may not be read": _one_mode("catalog.db", 0),
    "manifest.json may not be read": _one_mode("checkpoints/main/2/manifest.json", 0),
}
