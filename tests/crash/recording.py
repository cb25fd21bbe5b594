"""Record what an act writes to its disk: the same filesystem, over a disk in userspace that logs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mounts import loop_device, mount, unmount
from tests.support.volume import Snapshot, Volume, write_image

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0


@contextmanager
def logged_disk(image: Path, log: Path, folder: Path) -> Iterator[Path]:
    """Show `image` as the file ``disk`` in `folder`, beside ``journal``; at the end `log` is complete.

    Raises:
        RuntimeError: The process that shows it did not start.
    """
    folder.mkdir()
    command = [sys.executable, "-m", "tests.crash.recorder", str(folder), str(image), str(log)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (folder / "disk").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} did not start: status {process.poll()}")
            time.sleep(0.01)
        try:
            yield folder
        finally:
            unmount(folder)
        if process.wait(_STOP_TIMEOUT_S) != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    finally:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
    folder.rmdir()


def record(volume: Volume, content: Snapshot, log: Path, act: Callable[[Path, Path], None]) -> None:
    """Mount a disk of that content over the logged one and call `act` with the paths of store and journal.

    Args:
        volume: Says of what kind and size; it is not changed.
        content: The filesystem, cleanly unmounted, with the store as the act finds it.
        log: Is made again; `tests.crash.recorder.read_log` reads it.
        act: It writes to the journal only by appending.
    """
    image, folder, mountpoint = (volume.folder / name for name in ("logged.img", "logged", "logged.mnt"))
    write_image(image, volume.size_bytes, content.extents)
    mountpoint.mkdir()
    with logged_disk(image, log, folder), loop_device(folder / "disk") as device:
        mount(device, mountpoint, volume.kind)
        try:
            act(mountpoint / "store", folder / "journal")
        finally:
            unmount(mountpoint)
    mountpoint.rmdir()
    image.unlink()
