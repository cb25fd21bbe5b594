"""A folder exported and mounted by NFS, in the machine of `tests.nfs.machine`; there it replaces `shared_folder`."""

from __future__ import annotations

import collections
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounts import COMMAND_TIMEOUT_S

OPTIONS = os.environ.get("CKSTORE_NFS", "")
"""With which is mounted, such as ``vers=4.2``; empty: this is not that machine."""
DISK = Path("/mnt/disk")
"""What the server exports, as its root where the version has one."""
_HOSTS = itertools.cycle((1, 2))
_numbers: dict[Path, int] = {}
_mounts = collections.Counter[Path]()


@contextmanager
def nfs_folder(folder: Path, mountpoint: Path, *, lacks: str, locks: bool) -> Iterator[Path]:
    """Show `folder` to the next host at `mountpoint`, which is made; skip a test that asks for what NFS is not."""
    if locks != ("local_lock" not in OPTIONS and "nolock" not in OPTIONS) or lacks not in ("", "exchange"):
        pytest.skip(f"NFS with {OPTIONS} is another filesystem")
    mountpoint.mkdir()
    host = next(_HOSTS)
    is_version_3 = "vers=3" in OPTIONS
    place = folder if is_version_3 else f"/{folder.relative_to(DISK)}"
    own = folder.is_mount()  # what lies on the disk itself is exported with that
    if own:
        number = _numbers.setdefault(folder, len(_numbers) + 1)
        _run("exportfs", "-o", f"rw,sync,no_root_squash,no_subtree_check,insecure,fsid={number}", f"*:{folder}")
        _mounts[folder] += 1
    try:
        # NFS 3 has a lock service of each host, and here one for all: two mounts of one client, which share nothing.
        client = ["nsenter", "-n", "-u", "-t", Path(f"/run/host{host}").read_text().strip()]
        command = ["mount.nfs", f"10.9.{host}.1:{place}", str(mountpoint), "-o", f"{OPTIONS},nosharecache"]
        _run(*([] if is_version_3 else client), *command)
        try:
            yield mountpoint
        finally:
            _run("umount", str(mountpoint))
    finally:
        _mounts[folder] -= 1
        if own and not _mounts[folder]:
            _run("exportfs", "-u", f"*:{folder}")
            _run("exportfs", "-f")


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
