"""A case of the suite of stores from elsewhere: the store, and all that lies around it and must stay as it is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkpoint_dirs import checkpoint_dir

Builder = Callable[["Scene"], None]
"""Makes the store of a scene a hostile one."""

STRANGER = 4242
"""The user who opens the store, where the tests run as root; no account has this number."""
_COMPARED_BYTES = 16 * 2**20
_FREE = ("store", "real", "out", "home/.cache")
"""What may change: the store, what is checked out and exported, and the cache of the user."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The folder of a case.

    Attributes:
        folder: Its directory; everything below it belongs to the user who will open the store.
        out: Where that user may write: destinations and temporary files.
    """

    folder: Path
    out: Path

    @property
    def store(self) -> Path:
        """The hostile store."""
        return self.folder / "store"

    @property
    def outside(self) -> Path:
        """Files of the user that lie beside the store."""
        return self.folder / "outside"

    @property
    def home(self) -> Path:
        """The home of the user."""
        return self.folder / "home"

    @property
    def checkpoint(self) -> Path:
        """The directory of main@2."""
        return checkpoint_dir(self.store, "main", 2)

    def blob(self) -> Path:
        """Return a blob of main@2, by its name in the checkpoint."""
        return min((self.checkpoint / "blobs").iterdir())

    def canonical(self) -> Path:
        """Return the canonical name of `blob`."""
        name = self.blob().name
        return self.store / "blobs" / name.partition("-")[2][:2] / name


@contextlib.contextmanager
def made_scene(template: Path, folder: Path, room: Path, build: Builder) -> Iterator[Scene]:
    """Copy the store at `template` into a new scene with bait around it, and let the user make it a hostile one.

    All of it is removed at the end.

    Args:
        template: A store.
        folder: Of the scene; it is made.
        room: A folder in which the user's own is made.
        build: What to do to the store.
    """
    scene = Scene(folder, room / "out")
    try:
        (scene.out / "tmp").mkdir(parents=True)
        copy_store(template, scene.store)
        for place in (scene.outside, scene.home):
            _lay_bait(place)
        (scene.home / ".cache").mkdir()
        with _as_stranger(folder, scene.out):
            build(scene)
        yield scene
    finally:
        _remove(scene)


@contextlib.contextmanager
def _as_stranger(*folders: Path) -> Iterator[None]:
    """Give folders to the user, and be that user; does nothing where this process is not root."""
    if os.geteuid() != 0:
        yield
        return
    for folder in folders:
        _give(folder)
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def copy_store(template: Path, to: Path) -> None:
    """Copy a store with its times, and with its links among themselves."""
    made: dict[int, Path] = {}

    def copy(source: str, target: str) -> None:
        status = os.stat(source, follow_symlinks=False)
        if status.st_ino in made:
            os.link(made[status.st_ino], target)
            return
        shutil.copy2(source, target, follow_symlinks=False)
        made[status.st_ino] = Path(target)

    shutil.copytree(template, to, symlinks=True, copy_function=copy)


def _lay_bait(place: Path) -> None:
    """Put files into a folder under names that a store has, too."""
    for folder in ("", "blobs", "2", "main/2/blobs", "trash/x", "sub/sub"):
        (place / folder).mkdir(parents=True, exist_ok=True)
        for name in ("space-0", "manifest.json", "store.json", "damaged.json", ".new", "thesis.txt", "x.db-journal"):
            (place / folder / name).write_text(f"{folder}/{name}: not yours")
    (place / "link").symlink_to("thesis.txt")
    with sqlite3.connect(place / "own.db") as connection:
        connection.execute("CREATE TABLE mine (text)")
    connection.close()
    os.chmod(place / "thesis.txt", 0o600)


def _give(folder: Path) -> None:
    os.chown(folder, STRANGER, STRANGER)
    for _, folders, names, fd in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *names):
            os.chown(name, STRANGER, STRANGER, dir_fd=fd, follow_symlinks=False)


def _remove(scene: Scene) -> None:
    """Remove all of a scene, whatever its permissions are; Python's own way ends at a thousand levels."""
    for folder in (scene.folder, scene.out):
        if os.geteuid() != 0:
            subprocess.run(["chmod", "-R", "u+rwx", folder], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", folder], check=True)


def bytes_there(scene: Scene) -> int:
    """Return the bytes that the filesystem has for the store, as far as they may be seen."""
    told = subprocess.run(["du", "-s", "-B1", scene.store], check=False, capture_output=True, text=True).stdout
    return int(told.split()[0]) if told else 0


def picture(scene: Scene) -> dict[str, str]:
    """Return what there is around the store: kind, permissions, owner, times, and content of everything."""
    return dict(_seen(scene.folder, ""))


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what was made, removed or changed around the store."""
    return [
        f"{name or '.'}, beside the store: {before.get(name, 'nothing')} became {after.get(name, 'nothing')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _seen(path: Path, name: str) -> Iterator[tuple[str, str]]:
    status = os.stat(path, follow_symlinks=False)
    kind = stat.filemode(status.st_mode)
    about = f"{kind} of {status.st_uid}:{status.st_gid}"
    if stat.S_ISLNK(status.st_mode):
        yield name, f"{about} -> {os.readlink(path)}"
    elif stat.S_ISREG(status.st_mode):
        content = f"{status.st_size} bytes"
        if status.st_size <= _COMPARED_BYTES:
            content += f" {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
        yield name, f"{about}, {content}, written {status.st_mtime_ns}"
    else:
        yield name, f"{about}, written {status.st_mtime_ns}"
    if stat.S_ISDIR(status.st_mode):
        for entry in sorted(os.listdir(path)):
            below = f"{name}/{entry}" if name else entry
            if below not in _FREE:
                yield from _seen(path / entry, below)
