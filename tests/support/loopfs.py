"""Small real filesystems on loop devices, for tests that need one that keeps (or breaks) promises.

The directory in which tests run may be a tmpfs, an overlay or an ext4 without a journal; a mount of
our own is different. Every mount made here is taken down again, also when the test fails.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tests.support.requirements import require, require_program, require_root

Kind = Literal["ext4", "xfs", "btrfs"]

XFS_SMALLEST_MIB = 300
BTRFS_SMALLEST_MIB = 128
"""Their mkfs refuses less."""
AS_ON_LARGE_DISKS = {"ext4": ("-b", "4096")}
"""Of themselves small filesystems have smaller blocks; a later option of the test counts more."""

_COMMAND_TIMEOUT_S = 60.0
_UMOUNT_TRIES_S = 5.0


@contextlib.contextmanager
def loop_filesystem(
    kind: Kind,
    size_mib: int,
    tmp_path: Path,
    *,
    mkfs_options: tuple[str, ...] = (),
    mount_options: str = "",
) -> Iterator[Path]:
    """Make a filesystem in a sparse file below `tmp_path`, mount it, and give its mountpoint.

    Args:
        kind: An ext4 has a journal unless `mkfs_options` say otherwise.
        size_mib: Its size; an XFS is made at least `XFS_SMALLEST_MIB`, a btrfs `BTRFS_SMALLEST_MIB`.
        tmp_path: Two entries are made in it, named after `kind`, and removed at the end.
        mkfs_options: More options for mkfs, such as ``("-O", "^has_journal")``.
        mount_options: More options for mount, such as ``"nobarrier"``.

    Without root, the programs or a loop device the test is skipped, or fails under CKSTORE_CI.
    """
    require_root()
    mkfs = require_program(f"mkfs.{kind}")
    mount = require_program("mount")
    umount = require_program("umount")
    size_mib = max(size_mib, {"xfs": XFS_SMALLEST_MIB, "btrfs": BTRFS_SMALLEST_MIB}.get(kind, 0))

    image = _free_name(tmp_path, f"{kind}", ".img")
    mountpoint = image.with_suffix(".mnt")
    with image.open("xb") as file:
        file.truncate(size_mib << 20)
    mountpoint.mkdir()
    try:
        made = _run(str(mkfs), "-q", *AS_ON_LARGE_DISKS.get(kind, ()), *mkfs_options, str(image))
        require(made.returncode == 0, f"mkfs.{kind} failed: {made.stderr.strip()}")
        options = ",".join(filter(None, ["loop", mount_options]))
        mounted = _run(str(mount), "-t", kind, "-o", options, str(image), str(mountpoint))
        require(mounted.returncode == 0, f"cannot mount {kind} on loop: {mounted.stderr.strip()}")
        try:
            yield mountpoint
        finally:
            unmount(umount, mountpoint)
    finally:
        with contextlib.suppress(OSError):
            mountpoint.rmdir()
        image.unlink(missing_ok=True)


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    number = 0
    while (path := folder / f"{stem}-{number}{suffix}").exists():
        number += 1
    return path


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S)


def unmount(umount: Path, mountpoint: Path) -> None:
    """Unmount; while something still holds it open wait a little, then detach it anyway.

    A process that looks through ``/proc`` for open files holds each of them for a moment.
    """
    deadline = time.monotonic() + _UMOUNT_TRIES_S
    while True:
        done = _run(str(umount), str(mountpoint))
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    lazily = _run(str(umount), "-l", str(mountpoint))
    message = f"umount {mountpoint}: {done.stderr.strip()}; detached lazily ({lazily.returncode})"
    raise RuntimeError(message)
