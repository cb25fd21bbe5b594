"""Only regular files are read: nothing else in a store can stop the process that opens it, or lead it elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ckstore.errors import DamagedBlob
from ckstore.fs import files


def pipe(path: Path) -> None:
    os.mkfifo(path)


def symlink(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"secret")
    path.symlink_to("elsewhere")


def directory(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(path.parent)  # the name of a socket is short
        listening.bind(path.name)


@pytest.mark.parametrize("make", [pipe, symlink, directory, unix_socket])
def test_what_is_not_a_regular_file_is_refused_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x")

    with pytest.raises(DamagedBlob, match="is not a regular file"):
        files.read_file(tmp_path / "x", most_bytes=100)


LEASES = """
import fcntl, os, signal, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
signal.signal(signal.SIGIO, lambda *_: os._exit(0))  # asked to give it back
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
signal.pause()
"""


def test_a_file_on_which_another_has_a_lease_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"content")
    with subprocess.Popen([sys.executable, "-c", LEASES, str(path)], stdout=subprocess.PIPE) as leasing:
        assert leasing.stdout is not None
        leasing.stdout.readline()

        assert files.read_file(path, most_bytes=100) == b"content"

    assert leasing.returncode == 0
