"""Other users of this machine: processes with a user id of their own, with or without the group of a store."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ckstore
from tests.support.requirements import require, require_program, require_root

SOURCES = Path(ckstore.__file__).resolve().parents[1]
"""Of the ckstore that is tested, which may be a mutant."""
FIRST_UID = 70_001
GROUP = 70_000
"""The group of a store that several users share. The system knows neither this number nor those of the users."""
_TIMEOUT_S = 120.0
_LEAVE_DISKS = (
    "findmnt -rno TARGET -t ext4,xfs,btrfs | grep /ckstore-test- "
    '| while read -r disk; do umount -lq "$disk" || true; done; '
)
"""A namespace of mounts has a copy of each disk of another test, which would stay mounted for as long as it lives."""


@dataclass(frozen=True)
class User:
    """A user that only the kernel knows.

    Attributes:
        uid: Their number; their own group has the same.
        home: A directory of theirs, for caches and to work in.
        groups: Their further groups.
        umask: What their processes begin with.
        reach: A shell script that makes Python reachable for them, see `_reach`.
    """

    uid: int
    home: Path
    groups: tuple[int, ...] = ()
    umask: int = 0o077
    reach: str = ""

    def start(self, *command: object, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        """Begin to run a command, in their home by default; output and errors can be read from it."""
        groups = f"--groups={','.join(map(str, self.groups))}" if self.groups else "--clear-groups"
        enter = f"umask {self.umask:04o} && cd {shlex.quote(str(cwd or self.home))}"
        drop = f'exec setpriv --reuid={self.uid} --regid={self.uid} {groups} -- sh -c \'{enter} && exec "$@"\' sh "$@"'
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec", f"{_LEAVE_DISKS}{self.reach}{drop}", "sh", *map(str, command)],
            env={**os.environ, "HOME": str(self.home), "PYTHONPATH": str(SOURCES), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self.start(*command, cwd=cwd, **environment) as process:
            out, err = process.communicate(timeout=_TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ckstore(self, *words: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        return self.run(sys.executable, "-m", "ckstore_cli", *words, cwd=cwd, **environment)

    def python(self, code: str, *words: object) -> Any:
        """Run Python code, with `words` as ``sys.argv[1:]``; return what it printed last, as JSON."""
        done = self.run(sys.executable, "-c", code, *words)
        assert done.returncode == 0, f"uid {self.uid}: {code}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


@contextmanager
def common_folder() -> Iterator[Path]:
    """Give a new directory that every user may pass, unlike those that pytest makes; needs root, else skips."""
    require_root()
    with tempfile.TemporaryDirectory(prefix="ckstore-users-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        require(_barrier(folder) is None, f"needs a folder for temporary files that all users may pass: {folder}")
        yield folder


def users(folder: Path, count: int = 2, *, groups: tuple[int, ...] = (), umask: int = 0o077) -> tuple[User, ...]:
    """Return users with homes in `folder`, which is one of `common_folder`."""
    require_program("setpriv")
    require_program("unshare")
    reach = _reach(folder)
    made = []
    for uid in range(FIRST_UID, FIRST_UID + count):
        home = folder / f"home-{uid}"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        made.append(User(uid, home, groups, umask, reach))
    return tuple(made)


def _reach(folder: Path) -> str:
    """Return a script that shows Python and this project where other users may not pass, as below ``/root``.

    It runs in a namespace of mounts of its own: what it covers is covered for that process alone.
    """
    needed = [path for path in {Path(sys.base_prefix), Path(sys.prefix), SOURCES} if _barrier(path) is not None]
    lines = []
    for number, path in enumerate(needed):
        kept = folder / f"kept-{number}"
        kept.mkdir()
        lines.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(kept))}")
    for barrier in {barrier for path in needed if (barrier := _barrier(path)) is not None}:
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(barrier))}")
    for number, path in enumerate(needed):
        place, shown = shlex.quote(str(path)), shlex.quote(str(folder / f"kept-{number}"))
        lines.append(f"mkdir -p {place}; mount --bind {shown} {place}")
    return "".join(f"{line}\n" for line in lines)


def _barrier(path: Path) -> Path | None:
    """Return the first directory on the way to `path` that other users may not pass."""
    return next((above for above in reversed((path, *path.parents)) if not _passable(above)), None)


def _passable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o001)
