"""Stores with symlinks, and hard links of files outside, in every place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.scene import Builder, Scene
from tests.support.checkpoint_dirs import path_in_store

FOLDERS = (
    "blobs",
    "checkpoints",
    "refs",
    "pins",
    "staging",
    "trash",
    "reserve",
    "quarantine",
    "checkpoints/main",
    "checkpoints/main/2",
    "checkpoints/main/2/blobs",
)
FILES = (
    "store.json",
    "config.json",
    "catalog.db",
    "catalog.db-wal",
    "catalog.db-shm",
    "catalog.db-journal",
    "verified.json",
    "reserve/space-0",
    "checkpoints/main/2/manifest.json",
    "checkpoints/main/2/annotations.json",
    "checkpoints/main/2/damaged.json",
    "pins/figure.json",
    "a blob",
    "a canonical name",
)
"""Everything in a store that is a regular file."""


def place_of(scene: Scene, name: str) -> Path:
    """Return the path of one of `FILES` or `FOLDERS`."""
    if name == "a blob":
        return scene.blob()
    return scene.canonical() if name == "a canonical name" else path_in_store(scene.store, name)


def _folder_elsewhere(name: str, *, relative: bool) -> Builder:
    """The folder lies outside with all that is in it, and more; a symlink is in its place."""

    def build(scene: Scene) -> None:
        path = path_in_store(scene.store, name)
        target = scene.outside / "moved"
        path.rename(target)
        for more in ("space-0", "thesis.txt"):
            (target / more).write_text("not yours")
        (target / "folder").mkdir()
        (target / "folder" / "manifest.json").write_text("not yours")
        path.symlink_to(os.path.relpath(target, path.parent) if relative else target)

    return build


def _fan_out(scene: Scene) -> None:
    path = scene.canonical().parent
    path.rename(scene.outside / "moved")
    path.symlink_to(scene.outside / "moved")


def _file_elsewhere(name: str) -> Builder:
    """The file lies outside, as it should be, or as some text; a symlink is in its place."""

    def build(scene: Scene) -> None:
        path = place_of(scene, name)
        target = scene.outside / "moved"
        if path.exists():
            path.rename(target)
        else:
            target.write_text("not yours")
        path.symlink_to(target)

    return build


def _dangling(name: str) -> Builder:
    """What is written through this symlink would be a new file outside."""

    def build(scene: Scene) -> None:
        path = place_of(scene, name)
        path.unlink(missing_ok=True)
        path.symlink_to(scene.outside / "new")

    return build


def _hard_link(name: str) -> Builder:
    """The place has a file of the user, linked by that user or where the kernel lets others."""

    def build(scene: Scene) -> None:
        path = place_of(scene, name)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(scene.outside / ("own.db" if name.startswith("catalog") else "thesis.txt"), path)

    return build


def _entry(name: str, target: Callable[[Scene], Path]) -> Builder:
    """A further name in a folder of the store leads outside."""

    def build(scene: Scene) -> None:
        path = path_in_store(scene.store, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target(scene))

    return build


def _a_folder_full_of_links(name: str) -> Builder:
    def build(scene: Scene) -> None:
        path = path_in_store(scene.store, name)
        path.mkdir(parents=True)
        (path / "blobs").symlink_to(scene.outside / "sub")
        (path / "manifest.json").symlink_to(scene.outside / "thesis.txt")
        (path / "folder").symlink_to(scene.home)
        (path / "up").symlink_to("../../../..")
        (path / "loop").symlink_to("loop")

    return build


def _ring(scene: Scene) -> None:
    """Every folder but one is a symlink to the next."""
    for name, other in (("trash", "staging"), ("staging", "trash")):
        path = path_in_store(scene.store, name)
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
        path.symlink_to(other)


def _within(name: str, target: str) -> Builder:
    """A folder of the store is another one of it."""

    def build(scene: Scene) -> None:
        path = path_in_store(scene.store, name)
        path.rename(scene.store / "kept")
        path.symlink_to(os.path.relpath(path_in_store(scene.store, target), scene.store))

    return build


def _root_is_a_link(scene: Scene) -> None:
    scene.store.rename(scene.folder / "real")
    scene.store.symlink_to(scene.folder / "real")


def _outside(scene: Scene) -> Path:
    return scene.outside


def _thesis(scene: Scene) -> Path:
    return scene.outside / "thesis.txt"


ENTRIES = {
    "trash/entry": _outside,
    "trash/main@7": _outside,
    "staging/entry": _outside,
    "staging/main@7": _thesis,
    "reserve/space-9": _thesis,
    "reserve/other": _outside,
    "quarantine/xxh3-00000000000000000000000000000000.1": _thesis,
    "checkpoints/main/3": _outside,
    "checkpoints/elsewhere": _outside,
    "refs/best-of-all": _outside,
    "refs/.new": _thesis,
    "pins/other.json": _thesis,
    "pins/.new": _thesis,
    "checkpoints/main/2/.new": _thesis,
    "checkpoints/main/2/.damaged-000000000000": _thesis,
    "blobs/00": _outside,
    ".new": _thesis,
    "catalog.db.old": _thesis,
}

CASES: dict[str, Builder] = {
    **{f"{name} is a symlink": _folder_elsewhere(name, relative=False) for name in FOLDERS},
    **{f"{name} is a relative symlink": _folder_elsewhere(name, relative=True) for name in FOLDERS},
    **{f"{name} is a symlink to a file outside": _file_elsewhere(name) for name in FILES},
    **{f"{name} is a symlink to nothing": _dangling(name) for name in FILES},
    **{f"{name} is a hard link of a file outside": _hard_link(name) for name in FILES},
    **{f"{name} leads outside": _entry(name, target) for name, target in ENTRIES.items()},
    **{
        f"{name} is full of symlinks": _a_folder_full_of_links(name)
        for name in ("trash/x", "trash/main@2", "staging/x", "staging/x/part", "checkpoints/main/3", "quarantine/x")
    },
    "a fan-out folder is a symlink": _fan_out,
    "trash and staging are each other": _ring,
    "trash is the checkpoints": _within("trash", "checkpoints"),
    "staging is a checkpoint": _within("staging", "checkpoints/main/2"),
    "reserve is the blobs": _within("reserve", "blobs"),
    "trash is the store": _within("trash", "."),
    "the store is a symlink": _root_is_a_link,
}
