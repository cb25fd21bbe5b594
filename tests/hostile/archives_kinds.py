"""Stores with pipes, sockets, devices, folders and huge sparse files where small files should be."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from tests.hostile.archives_links import FILES, FOLDERS, place_of
from tests.hostile.scene import Builder, Scene
from tests.support.checkpoint_dirs import path_in_store

_ZERO = os.makedev(1, 5)
"""/dev/zero, which can be read for ever."""
_SPARSE_BYTES = 2**40


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inner").write_text("a folder where a file should be")


def _device(path: Path) -> None:
    if os.getuid() != 0:
        os.mkfifo(path)
        return
    user = os.geteuid()
    os.seteuid(0)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, _ZERO)
        os.chown(path, user, user)
    finally:
        os.seteuid(user)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_SPARSE_BYTES)


def _sparse_of_the_largest_size(path: Path) -> None:
    """As large as a reader takes a manifest, with its frame right."""
    with path.open("wb") as file:
        file.write(b'{"digest":"xxh3-' + b"0" * 32 + b'","manifest":')
        file.truncate(2**29 - 2)
        file.seek(2**29 - 2)
        file.write(b"}\n")


def _empty(path: Path) -> None:
    path.touch()


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a socket": _socket,
    "a folder": _folder,
    "a device": _device,
    "a huge sparse file": _sparse,
    "an empty file": _empty,
}


def _put(name: str, make: Callable[[Path], None]) -> Builder:
    def build(scene: Scene) -> None:
        path = place_of(scene, name)
        path.unlink(missing_ok=True)
        make(path)

    return build


def _instead_of_a_folder(name: str, make: Callable[[Path], None]) -> Builder:
    def build(scene: Scene) -> None:
        path = path_in_store(scene.store, name)
        shutil.rmtree(path)
        make(path)

    return build


def _everywhere(make: Callable[[Path], None]) -> Builder:
    """The thing lies in every folder, under a name of its own."""

    def build(scene: Scene) -> None:
        for name in ("", *FOLDERS, "blobs/ab", "trash/x", "staging/x", "checkpoints/main/3"):
            folder = path_in_store(scene.store, name)
            folder.mkdir(parents=True, exist_ok=True)
            for own in ("9", "thing", "thing.json", "xxh3-" + "0" * 32):
                if not os.path.lexists(folder / own):
                    make(folder / own)

    return build


CASES: dict[str, Builder] = {
    **{
        f"{Path(name).name if 'manifest' in name else name} is {kind}": _put(name, make)
        for name in FILES
        for kind, make in KINDS.items()
    },
    **{
        f"{name} is {kind} and no folder": _instead_of_a_folder(name, KINDS[kind])
        for name in FOLDERS
        for kind in ("a pipe", "an empty file", "a socket")
    },
    **{
        f"{kind} in every folder": _everywhere(KINDS[kind])
        for kind in ("a pipe", "a socket", "a device", "a folder", "a huge sparse file")
    },
    "manifest.json is sparse and framed": _put("checkpoints/main/2/manifest.json", _sparse_of_the_largest_size),
}
