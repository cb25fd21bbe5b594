"""A call that fails in the middle of an act leaves nothing open, as long as its error is kept.

The traceback of an error keeps what its functions had in hand: a lock that was just taken, or a directory that a
comprehension goes through. ``CKSTORE_CRASH=full`` has every call of every act fail, else a few that the commit draws.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError
from tests.cluster.acts import ACTS, Act, base, files
from tests.cluster.conftest import copied
from tests.support.coverage import covered, sample_seed
from tests.support.descriptors import open_below

_LOOKS = ("stat", "lstat", "fstat", "access", "listdir", "scandir", "readlink", "statvfs")
_CHANGES = ("mkdir", "rmdir", "link", "symlink", "rename", "unlink", "utime", "chmod", "fchmod", "ftruncate")
_BYTES = ("open", "read", "pread", "preadv", "write", "writev", "pwrite", "pwritev", "posix_fallocate", "fsync")
_SAMPLE = 3

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")]


class Calls:
    """Counts calls on names below a folder, or on open files in it; the one of a number fails."""

    def __init__(self, below: Path) -> None:
        self.count = self.fails_at = 0
        self._below = str(below)

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same call, which may fail."""

        def call(*args: Any, **given: Any) -> Any:
            if self.fails_at and self._is_there(args[0] if args else ".", given.get("dir_fd", given.get("src_dir_fd"))):
                self.count += 1
                if self.count == self.fails_at:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*args, **given)

        return call

    def _is_there(self, where: Any, dir_fd: int | None) -> bool:
        fd = where if isinstance(where, int) else dir_fd
        path = os.fspath(where) if fd is None else _of_fd(fd)
        return isinstance(path, str) and path.startswith(self._below)


_readlink = os.readlink


def _of_fd(fd: int) -> str:
    try:
        return _readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # it is closed; the call itself says so
        return ""


@contextmanager
def counting(below: Path) -> Iterator[Calls]:
    calls = Calls(below)
    with pytest.MonkeyPatch.context() as patch:
        for name in (*_LOOKS, *_CHANGES, *_BYTES):
            patch.setattr(os, name, calls.counted(getattr(os, name)))
        yield calls


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store before each act."""
    place = tmp_path_factory.mktemp("before")
    (place / "outside").mkdir()
    found = {}
    with base(place / "store") as store:
        for act in ACTS:
            copied(place / "store", place / act.name)
            found[act.name] = place / act.name
            act.do(store, place / "outside")
    return found


@pytest.mark.parametrize("shared", [False, True], ids=["local", "shared"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_a_call_that_fails_leaves_nothing_open(
    act: Act, shared: bool, before: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tried(at: int) -> tuple[int, list[str]]:
        place = tmp_path / str(at)
        (place / "outside").mkdir(parents=True)
        files(place)
        copied(before[act.name], place / "store")
        error = None
        with counting(place) as calls:
            # A catalog that lies elsewhere is what a store on a filesystem of several hosts has.
            store = Store.open(place / "store", catalog_path=place / "catalog.db" if shared else None)
            assert store._context.view.frees_at_once is not shared
            calls.fails_at = at
            try:
                act.do(store, place / "outside")
            except CkstoreError as caught:
                error = caught
            finally:
                calls.fails_at = 0
            store.close()
        left = [*open_below(place).values()]
        return calls.count, [f"call {at}: {path} is open after {error!r}" for path in left]

    seed = sample_seed()
    count, wrong = tried(2**30)
    for at in range(1, count + 1) if seed is None else random.Random(seed).sample(range(1, count + 1), _SAMPLE):
        wrong += tried(at)[1]

    told = covered("failed calls", f"{act.name}, {'shared' if shared else 'local'}", seed=seed, calls=count)
    with capsys.disabled():
        print(f"\n{told}")
    assert not wrong, "\n".join(wrong[:9])
