"""No act gives the kernel a path with more than one component below the root of a store, nor follows a symlink in it.

Every call of every act that has a path is looked at: what the C library is given, not what it means. SQLite's own files
are left out: it knows paths only.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

import pytest

from tests.faults.acts import ACTS, FOREIGN
from tests.faults.harness import Faults
from tests.support.coverage import covered, drawn

pytestmark = pytest.mark.crash

_CWD = -100
_AT_SYMLINK_NOFOLLOW, _AT_SYMLINK_FOLLOW, _AT_EMPTY_PATH = 0x100, 0x400, 0x1000
_CATALOG = re.compile(r"catalog\.db(-journal|-wal|-shm|\..*)?")
_MAKING = {"mkdir", "mkdirat", "symlink", "symlinkat", "mknod", "mknodat"}
_NAMING = {"unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link"}
_NAMES_ONLY = _MAKING | _NAMING | {"lstat", "lstat64", "readlink", "readlinkat", "lchown"}
"""These act on a name: a symlink of that name is not followed, whatever the flags."""


@dataclass(frozen=True)
class Given:
    """What a call gave the kernel: a path from a directory, and flags."""

    call: str
    dir_fd: int
    path: str
    flags: int

    @property
    def follows(self) -> bool:
        """Whether a symlink in the place of the last component would be followed."""
        if self.call in _NAMES_ONLY:
            return False
        if self.call.startswith(("open", "creat", "__open")) and self.call != "opendir":
            new = os.O_CREAT | os.O_EXCL
            return not (self.flags & os.O_NOFOLLOW or self.flags & new == new or self.path == ".")
        if self.call == "linkat":
            return bool(self.flags & _AT_SYMLINK_FOLLOW)
        if self.call in ("fstatat", "fstatat64", "faccessat", "utimensat", "statx", "fchmodat", "fchownat"):
            by_descriptor = self.flags & _AT_EMPTY_PATH and not self.path
            return not (self.flags & _AT_SYMLINK_NOFOLLOW or by_descriptor)
        return True


def parse(line: str) -> list[Given]:
    told, *raw = line.split("\t")
    call = told.split()[2]
    if not raw:
        return []
    dir_fd, flags, path = raw[0].split(" ", 2)
    found = [Given(call, int(dir_fd), path, int(flags, 16))]
    if len(raw) > 1:
        dir_fd, path = raw[1].split(" ", 1)
        found.append(Given(call, int(dir_fd), path, int(flags, 16)))
    return found


def wrong(given: Given, store: str) -> str:
    """Return what is wrong with it; empty if nothing is."""
    name = given.path.rpartition("/")[2]
    if given.path == store or (given.dir_fd == _CWD and _CATALOG.fullmatch(name)):
        return ""
    if given.path.startswith("/"):
        if not given.path.startswith(f"{store}/"):
            return ""
        below = given.path.removeprefix(f"{store}/")
        if "/" in below:
            return f"{given.call} of {below}: more than one component below the root"
        return f"{given.call} of {below}: by a path, which is followed" if given.follows else ""
    if "/" in given.path or given.path == "..":
        return f"{given.call} of {given.path} in an open directory: more than one component"
    return f"{given.call} of {given.path} in an open directory: follows a symlink" if given.follows else ""


@pytest.mark.parametrize("act", drawn(ACTS, 3, "load_marks"))
def test_no_act_gives_the_kernel_a_path_below_the_root(
    faults: Faults, capfd: pytest.CaptureFixture[str], act: str
) -> None:
    answer = faults.paths(act)
    assert (answer["violations"], answer["error"]) == ([], "")

    calls = [given for line in answer["calls"] for given in parse(line)]
    found = sorted({problem for given in calls if (problem := wrong(given, answer["store"]))})

    counts = {"calls": len(answer["calls"]), "paths": len(calls)}
    with capfd.disabled():
        print(f"\n{covered('paths', act, violations=len(found), **counts)}", file=sys.stderr, flush=True)
    assert found == []
    assert sum(given.dir_fd != _CWD for given in calls) > 50


@pytest.mark.parametrize("act", FOREIGN)
def test_a_foreign_folder_is_read_by_descriptors_and_no_symlink_in_it_is_followed(faults: Faults, act: str) -> None:
    answer = faults.paths(act)
    assert (answer["violations"], answer["error"]) == ([], "")

    calls = [given for line in answer["calls"] for given in parse(line)]
    found = {problem for given in calls if (problem := wrong(given, answer["store"]))}

    # `commit` is given the path of the checkpoint, and a path that was named may be a symlink.
    assert {problem for problem in found if " of checkpoint-1: by a path" not in problem} == set()
    assert sum(given.dir_fd != _CWD for given in calls) > 10


def test_what_is_wrong_is_seen() -> None:
    follow, nofollow = 0, os.O_NOFOLLOW

    assert wrong(Given("openat", 7, "name", nofollow), "/s") == ""
    assert wrong(Given("open", _CWD, "/s", follow), "/s") == ""
    assert wrong(Given("open", _CWD, "/s/catalog.db", follow), "/s") == ""
    assert wrong(Given("open", _CWD, "/elsewhere/x/y", follow), "/s") == ""
    assert wrong(Given("openat", 7, "name", follow), "/s")
    assert wrong(Given("unlinkat", 7, "a/b", follow), "/s")
    assert wrong(Given("openat", 7, "..", nofollow), "/s")
    assert wrong(Given("open", _CWD, "/s/blobs/ab", nofollow), "/s")
    assert wrong(Given("chmod", _CWD, "/s/blobs", follow), "/s")
    assert wrong(Given("utimensat", 7, "name", 0), "/s")
    assert wrong(Given("linkat", 7, "name", _AT_SYMLINK_FOLLOW), "/s")
    assert parse("1 64 openat blobs\t7 20000 blobs") == [Given("openat", 7, "blobs", 0x20000)]
    assert parse("1 4 fsync blobs") == []
