"""Mount a filesystem on a disk that fails when it is told to (`tests.support.error_disk`)."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.error_disk import NAME
from tests.support.loopfs import AS_ON_LARGE_DISKS, Kind, unmount
from tests.support.requirements import require, require_program, require_root

_TIMEOUT_S = 60.0


class FailingDisk:
    """A disk, and the place where its filesystem is mounted."""

    def __init__(self, kind: Kind, folder: Path, mount: Path, control: socket.socket) -> None:
        self.mount = mount
        self._kind = kind
        self._folder = folder
        self._control = control
        self._answers = control.makefile("r")

    def arm(self, kind: str = "", at: int = 0, *, sticky: bool = False) -> None:
        """From now on count writes and flushes, and let the `at`-th of a kind fail: ``write``, ``flush``.

        ``corrupt`` stores the `at`-th large write, which is of a blob, with another bit. With `sticky` all writes and
        flushes fail after it.
        """
        self._tell(do="arm", kind=kind, at=at, sticky=sticky)

    def heal(self) -> tuple[dict[str, int], int]:
        """Let nothing fail any more; return how many writes and flushes there were, and how many of them failed."""
        told = self._tell(do="heal")
        return told["counts"], told["hits"]

    def counts(self) -> dict[str, int]:
        """Return how many writes and flushes there were since `arm`."""
        counts: dict[str, int] = self._tell(do="look")["counts"]
        return counts

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount the filesystem by a new loop device, so that nothing of it is cached; unmount it in the end."""
        options = "loop,nouuid" if self._kind == "xfs" else "loop"
        _run("mount", "-t", self._kind, "-o", options, self._new_name(), str(self.mount))
        try:
            yield self.mount
        finally:
            unmount(require_program("umount"), self.mount)

    def _new_name(self) -> str:
        """Return the name that the disk has from now on; through the older ones it cannot be reached any more."""
        return str(self._folder / f"{NAME}{self._tell(do='open')['mounts']}")

    def repair(self) -> None:
        """Do what one does after such errors, before it is mounted: check an ext4; XFS has only its log.

        A write that failed once may have been one of ext4's own, which then is not as it should be, and does not know.
        """
        if self._kind == "ext4":
            command = (str(require_program("e2fsck")), "-fy", self._new_name())
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
            if done.returncode not in (0, 1):  # 1: it repaired something
                raise RuntimeError(f"e2fsck gave {done.returncode}: {done.stdout} {done.stderr}")

    def reset(self) -> None:
        """Give the disk the content of the image again; it must not be mounted."""
        self._tell(do="reset")

    def wait_until_ready(self) -> None:
        """Wait until the file can be used."""
        require(self._answers.readline(), "cannot mount FUSE here")

    def _tell(self, **command: Any) -> dict[str, Any]:
        self._control.sendall(json.dumps(command).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer

    def close(self) -> None:
        """Hang up."""
        self._answers.close()
        self._control.close()


@contextlib.contextmanager
def failing_disk(kind: Kind, image: Path, tmp_path: Path) -> Iterator[FailingDisk]:
    """Serve a copy-on-write view of `image` as a disk; everything is taken down in the end.

    Without root or FUSE the test is skipped, or fails under CKSTORE_CI.
    """
    require_root()
    require(Path("/dev/fuse").exists(), "needs /dev/fuse")
    umount = require_program("umount")
    folder, mount = tmp_path / "fuse", tmp_path / "mount"
    folder.mkdir()
    mount.mkdir()
    mine, theirs = socket.socketpair()
    mine.settimeout(None)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.error_disk", image, folder, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=Path(__file__).resolve().parents[2],
    )
    theirs.close()
    disk = FailingDisk(kind, folder, mount, mine)
    try:
        disk.wait_until_ready()
        try:
            yield disk
        finally:
            _unmount_soon(umount, folder)
    finally:
        disk.close()  # on which the server ends, and with it the filesystem
        server.wait(timeout=_TIMEOUT_S)


def _unmount_soon(umount: Path, folder: Path) -> None:
    """Unmount the filesystem of the disk, at the latest when the last loop device lets it go."""
    subprocess.run([umount, "-l", folder], check=True, capture_output=True, timeout=_TIMEOUT_S)


def make_image(kind: Kind, path: Path, size_mib: int, *options: str) -> None:
    """Make an empty filesystem in a new sparse file."""
    with path.open("xb") as file:
        file.truncate(size_mib << 20)
    _run(str(require_program(f"mkfs.{kind}")), "-q", *AS_ON_LARGE_DISKS.get(kind, ()), *options, str(path))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    require(done.returncode == 0, f"{' '.join(command)} failed: {done.stderr.strip()}")
