"""Determine the filesystem at a path and the filesystems under it, from the table of mounts and ``/sys``.

An overlay stores its files on the filesystem of its upper layer. A filesystem on a loop device is stored in a file on
another filesystem. The kernel reports the path of this layer or file. If the path is valid in this process, the
underlying filesystem is also inspected. In a container, the path is often not valid, and the underlying filesystem
remains unknown. Nothing is written.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ckstore.fs.dirfd_stat import open_descriptor
from ckstore.fs.host import statfs
from ckstore.model.doctor.place import JOURNALED, PlaceFacts

# The number of layers is limited, because a false table of mounts could contain a cycle.
_MOST_LAYERS = 4
_NOT_SHOWN = (FileNotFoundError, NotADirectoryError, PermissionError)
"""The errors that occur if ``/proc`` is missing, is not the kernel's, or hides the file. Other errors are raised."""


class _Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``, see proc(5)."""

    number: str
    kind: str
    mount: str
    source: str
    options: frozenset[str]


_NONE = _Mount("", "", "", "", frozenset())


def examine(path: Path, *, layers: int = _MOST_LAYERS) -> PlaceFacts:
    """Inspect the filesystem of the directory `path` and the filesystems under it, at most `layers` in total."""
    mount = _mount_of(path)
    disk = _disk(mount)
    journal = None
    if mount.kind in JOURNALED:
        with suppress(OSError):
            task = Path("/sys/fs/ext4", disk or "?", "journal_task").read_text(encoding="ascii").strip()
            journal = task != "<none>"
    return PlaceFacts(
        path=str(path),
        kind=mount.kind,
        mount=mount.mount,
        source=mount.source,
        options=mount.options,
        journal=journal,
        below=_below(mount, disk, layers - 1) if layers > 1 else None,
    )


def _mount_of(path: Path) -> _Mount:
    """Return the mount of `path`. Without the table of mounts, only the type is known, from `statfs`."""
    status = os.stat(path)
    number = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    # Prefer the id of the mount: a bind mount has the same device number as another mount, but its own options.
    number_of_mount = mount_id(path)
    best = _NONE
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except _NOT_SHOWN:
        lines = []
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 6 or len(rest) < 2:
            continue
        if fields[2] == number or fields[0] == str(number_of_mount):
            options = frozenset(fields[5].split(",")) | frozenset((rest[2] if len(rest) > 2 else "").split(","))
            best = _Mount(fields[2], rest[0], _unescaped(fields[4]), _unescaped(rest[1]), options)
            # A filesystem may be mounted in several places with different options. Only the id identifies a mount.
            if fields[0] == str(number_of_mount):
                break
    return best if best.kind else best._replace(kind=statfs.kind_by_number(path))


def mount_id(path: Path) -> int | None:
    """Return the id of the mount of a directory, or None without ``/proc``."""
    fd = open_descriptor(path, os.O_PATH | os.O_DIRECTORY)
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="utf-8").splitlines()
    except _NOT_SHOWN:
        return None
    finally:
        os.close(fd)
    return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), None)


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _disk(mount: _Mount) -> str:
    """Return the kernel's name of the block device of a mount, or "" if it has none or ``/sys`` does not show it."""
    # Try the number first, because a name such as ``/dev/root`` need not exist. Then try the name, because the number
    # of a btrfs mount is not the number of a device.
    for where in (f"/sys/dev/block/{mount.number}", f"/sys/class/block/{os.path.basename(mount.source)}"):
        # The entry is a symlink into /sys/devices. The last component of its target is the kernel's name of the device.
        found = os.path.realpath(where)
        if os.path.isdir(found):
            return os.path.basename(found)
    return ""


def _below(mount: _Mount, disk: str, layers: int) -> PlaceFacts | None:
    """Return the filesystem under the filesystem of a mount, or None if no such filesystem is visible."""
    if mount.kind == "overlay":
        folder = _upper_layer(mount)
    elif disk.startswith("loop"):
        folder = _folder_of_loop(disk)
    else:
        return None
    try:
        return None if folder is None else examine(folder, layers=layers)
    except OSError:
        return None


def _upper_layer(mount: _Mount) -> Path | None:
    """Return the upper layer of an overlay, or None if the paths of its mount do not lead to it."""
    # The paths are those of the process that mounted the overlay. In this process, they may name other directories. The
    # right working directory contains ``work``, which overlayfs creates, and is on the same filesystem as the upper
    # layer.
    paths = {}
    for option in mount.options:
        name, _, value = option.partition("=")
        if name in ("upperdir", "workdir"):
            paths[name] = Path(_unescaped(value))
    if len(paths) < 2 or not all(path.is_absolute() for path in paths.values()):
        return None
    try:
        upper, work = os.stat(paths["upperdir"]), os.stat(paths["workdir"] / "work")
    except OSError:
        return None
    same = upper.st_dev == work.st_dev and stat.S_ISDIR(upper.st_mode) and stat.S_ISDIR(work.st_mode)
    return paths["upperdir"] if same else None


def _folder_of_loop(disk: str) -> Path | None:
    """Return the directory of the file behind a loop device, or None if it is not reachable."""
    here = Path(os.path.realpath(f"/sys/class/block/{disk}"))
    for folder in (here, here.parent):  # a partition uses the file of its disk
        try:
            file = Path(os.fsdecode((folder / "loop/backing_file").read_bytes()).rstrip("\n"))
        except OSError:
            continue
        return file.parent if file.is_absolute() and file.is_file() else None
    return None
