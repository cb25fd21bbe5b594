"""Mounts and loop devices of a process of its own: they go when it ends, however it ends."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
COMMAND_TIMEOUT_S = 60.0
_UMOUNT_TRIES_S = 10.0
_SHM = Path("/dev/shm")
_SHM_ROOM_BYTES = 2**30

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
_LOOP_SET_STATUS64, _LOOP_GET_STATUS64, _LO_FLAGS_AUTOCLEAR, _LO_FLAGS_AT = 0x4C04, 0x4C05, 4, 52
_LOOP_INFO64_BYTES = 232
_FS_IOC_SHUTDOWN = 0x8004587D
"""``_IOR('X', 125, __u32)`` of linux/fs.h, the same on x86-64 and arm64."""

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def own_mounts() -> None:
    """Give this process and its children their own table of mounts, which others do not see. Needs root."""
    _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(_libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount --make-rprivate /")


def bind(source: Path, target: Path) -> None:
    """Show the file `source` in the place of `target`, to the processes that share this table of mounts."""
    _checked(
        _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND), None), f"bind {target}"
    )


def mount(device: Path, mountpoint: Path, kind: str, options: str = "") -> None:
    """Mount a block device; its journal is replayed. `options` are those of its kind of filesystem.

    Raises:
        OSError: The kernel refused the filesystem.
    """
    result = _libc.mount(
        os.fsencode(device), os.fsencode(mountpoint), kind.encode(), ctypes.c_ulong(0), options.encode()
    )
    _checked(result, f"mount {kind} {device}")


def unmount(mountpoint: Path) -> None:
    """Unmount; while something still holds it open, wait a moment.

    Raises:
        OSError: Something held it for long.
    """
    deadline = time.monotonic() + _UMOUNT_TRIES_S
    while True:
        if _libc.umount2(os.fsencode(mountpoint), 0) == 0:
            return
        code = ctypes.get_errno()
        if code != errno.EBUSY or time.monotonic() > deadline:
            raise OSError(code, f"umount {mountpoint}: {os.strerror(code)}")
        time.sleep(0.005)


def cut_power(fd: int, *, flush_log: bool) -> None:
    """Shut down the filesystem of `fd`: nothing that it has in memory reaches the disk any more.

    Args:
        fd: Any descriptor on it.
        flush_log: Whether what its journal has in memory is written out first.
    """
    fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", 1 if flush_log else 2))


def memory_folder() -> Path:
    """Return a new folder in memory where there is room, else on the disk: images need not survive a power cut."""
    status = os.statvfs(_SHM) if _SHM.is_dir() else None
    roomy = status is not None and status.f_bavail * status.f_frsize > _SHM_ROOM_BYTES
    return Path(tempfile.mkdtemp(prefix="ckstore-crash-", dir=_SHM if roomy else None))


@contextmanager
def loop_device(image: Path) -> Iterator[Path]:
    """Attach a loop device to a file; it is detached at the end, or when this process dies."""
    done = subprocess.run(
        ["losetup", "--find", "--show", str(image)],
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        env={**os.environ, "PATH": SYSTEM_PATH},
    )
    if done.returncode != 0:
        raise OSError(errno.ENODEV, f"losetup {image}: {done.stderr.strip()}")
    device = Path(done.stdout.strip())
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        status = bytearray(_LOOP_INFO64_BYTES)
        fcntl.ioctl(fd, _LOOP_GET_STATUS64, status)
        (flags,) = struct.unpack_from("I", status, _LO_FLAGS_AT)
        struct.pack_into("I", status, _LO_FLAGS_AT, flags | _LO_FLAGS_AUTOCLEAR)
        fcntl.ioctl(fd, _LOOP_SET_STATUS64, status)  # so that closing `fd` detaches it
        yield device
    finally:
        os.close(fd)
