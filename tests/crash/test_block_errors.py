"""A disk that cannot write, or whose flush fails: a failed fsync is believed, told, and never repeated.

The N-th write, or the N-th flush, of the disk under an ext4 or XFS fails, once or for good (then the disk also loses
what it had not flushed), while a store is at work: saves, a replacement, a deletion, retention and gc. Then the disk is
well again and the filesystem mounted again, as at a start of the machine (ext4 after
``e2fsck``, as one does after such errors), without anything of the page cache: what was acknowledged is there, what
failed is not, and the store goes on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError, CkstoreWarning, UnknownOutcome
from tests.faults.checker import check_store
from tests.faults.harness import evenly
from tests.faults.journal import Promised
from tests.faults.states import CHUNK_BYTES, state
from tests.support.coverage import covered
from tests.support.failing_disk import FailingDisk, failing_disk, make_image
from tests.support.loopfs import Kind
from tests.support.plans import plan_of
from tests.support.requirements import CRASH_FULL, representatives

pytestmark = [pytest.mark.crash, pytest.mark.root]

_SIZES: dict[Kind, int] = {"ext4": 64, "xfs": 300}
_POINTS = 24 if CRASH_FULL else 2
"""Of each kind of failure and filesystem, spread over all that there are: a case takes a second or two."""
_GET_GENERATION = 0x80087601
"""``FS_IOC_GETVERSION``: tells two files apart that have the same inode number one after another."""
_RUN = "main"
_CASES = [(kind, fails, sticky) for kind in ("ext4", "xfs") for fails in ("write", "flush") for sticky in (False, True)]


# ------------------------------------------------------------------------------------- what is tried


@dataclass
class Work:
    """A store at work on a failing disk, and what it has promised.

    Attributes:
        promised: As the checker wants it.
        errors: What was told, for messages.
    """

    path: Path
    promised: Promised = field(
        default_factory=lambda: Promised({(_RUN, 0): {"first"}, (_RUN, 1): {"small-0"}}, store=True)
    )
    errors: list[str] = field(default_factory=list)
    store: Store | None = None

    def run(self) -> None:
        """Do everything that still can be done; when two acts after another fail, the disk has died."""
        failed_before = False
        for act in (self._save, self._replace, self._delete, self._retain, self._save_again):
            try:
                self.store = self.store or Store.open(self.path)
                act(self.store)
                failed_before = False
            except CkstoreError as error:  # any other error fails the test
                self.errors.append(f"{act.__name__}: {error.message}")
                self.store = None  # as the hint of the error says
                if failed_before:
                    return
                failed_before = True

    def _put(self, store: Store, step: int, name: str) -> None:
        before = self._promise(step, name)
        try:
            store.save(state(name), step=step, run=_RUN, if_exists="replace")
        except UnknownOutcome:
            raise
        except CkstoreError:
            self.promised.options[_RUN, step] = before
            raise
        self.promised.options[_RUN, step] = {name}

    def _promise(self, step: int, name: str | None) -> set[str | None]:
        before = self.promised.options.get((_RUN, step), {None})
        self.promised.options[_RUN, step] = before | {name}
        return before

    def _save(self, store: Store) -> None:
        self._put(store, 2, "second")

    def _replace(self, store: Store) -> None:
        self._put(store, 1, "small-1")

    def _delete(self, store: Store) -> None:
        self._promise(0, None)
        with suppress(LookupError):
            store.delete(0)
        self.promised.options[_RUN, 0] = {None}

    def _retain(self, store: Store) -> None:
        plan = plan_of(store, RetentionPolicy(keep_last=1))
        for entry in plan.dropped:
            self._promise(entry.step, None)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", CkstoreWarning)
            dropped = store.prune(RetentionPolicy(keep_last=1)).dropped
        self.errors += [f"_retain: {warning.message}" for warning in told]  # dropped, and not freed yet
        for info in dropped:
            self.promised.options[_RUN, info.step] = {None}

    def _save_again(self, store: Store) -> None:
        self._put(store, 3, "other")


class Syncs:
    """Watches `os.fsync`: which files it failed on, and whether it was tried again."""

    def __init__(self) -> None:
        self.failed: set[tuple[int, int, int]] = set()
        self.repeated: list[str] = []
        self.failures = 0
        self._fsync = os.fsync

    def __call__(self, fd: int) -> None:
        key, name, is_file = self._identity(fd)
        if key in self.failed and is_file:
            self.repeated.append(f"fsync of {name} was issued again after it had failed")
        try:
            self._fsync(fd)
        except OSError:
            self.failures += 1
            self.failed.add(key)
            raise

    def _identity(self, fd: int) -> tuple[tuple[int, int, int], str, bool]:
        status = os.fstat(fd)
        generation = bytearray(8)
        with suppress(OSError):
            fcntl.ioctl(fd, _GET_GENERATION, generation)
        key = (status.st_dev, status.st_ino, int.from_bytes(generation, "little"))
        return key, os.readlink(f"/proc/self/fd/{fd}"), stat.S_ISREG(status.st_mode)


# --------------------------------------------------------------------------------------- the lane


@dataclass
class Tally:
    """What a lane has found."""

    points: int = 0
    told: int = 0
    fsyncs_failed: int = 0
    violations: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind], Path]:
    """Give the image of a filesystem with a store, made once for each kind."""
    folder = tmp_path_factory.mktemp("images")

    def image(kind: Kind) -> Path:
        path = folder / f"{kind}.img"
        if not path.exists():
            make_image(kind, path, _SIZES[kind])
            _fill(kind, path, folder)
        return path

    return image


def _fill(kind: Kind, image: Path, folder: Path) -> None:
    mount = folder / "mount"
    mount.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", "loop", image, mount], check=True, timeout=60)
    try:
        store = Store.init(mount / "store", chunk_bytes=CHUNK_BYTES)
        store.save(state("first"), step=0)
        store.save(state("small-0"), step=1)
    finally:
        subprocess.run(["umount", mount], check=True, timeout=60)


def one_case(disk: FailingDisk, fails: str, at: int, *, sticky: bool, syncs: Syncs, tally: Tally) -> None:
    """Let one write or flush fail, and look at what is left."""
    disk.reset()
    with disk.mounted() as mount:
        work = Work(mount / "store")
        disk.arm(fails, at, sticky=sticky)
        work.run()
        _, hits = disk.heal()
    disk.repair()
    with disk.mounted() as mount:
        wrong = check_store(mount / "store", work.promised, catalog_was_unreadable=True)
    tally.points += hits > 0
    tally.told += len(work.errors)
    where = f"{fails} {at}{' and all after it' if sticky else ''}"
    tally.violations += [f"{where}: {text}; told: {work.errors}" for text in [*wrong, *syncs.repeated]]
    tally.fsyncs_failed += syncs.failures


@pytest.mark.parametrize(
    "kind, fails, sticky", representatives(_CASES, ("ext4", "flush", False), ("xfs", "write", True))
)
def test_nothing_acknowledged_is_lost_by_a_disk_that_fails(  # noqa: PLR0917 - fixtures
    kind: Kind,
    fails: str,
    sticky: bool,
    images: Callable[[Kind], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    tally = Tally()
    with failing_disk(kind, images(kind), tmp_path) as disk:
        for at in _points(disk, fails):
            syncs = Syncs()
            with monkeypatch.context() as watched:
                watched.setattr(os, "fsync", syncs)
                one_case(disk, fails, at, sticky=sticky, syncs=syncs, tally=tally)

    counts = {"points": tally.points, "errors_told": tally.told, "fsyncs_failed": tally.fsyncs_failed}
    line = covered(
        "block errors",
        f"{kind}, {fails} fails {'for good' if sticky else 'once'}",
        violations=len(tally.violations),
        **counts,
    )
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
    assert tally.violations == []
    assert tally.points >= _POINTS - 1  # how often the disk is written to differs a little from time to time
    if sticky:  # what fails once a filesystem may write again by itself
        assert tally.told >= tally.points


def _points(disk: FailingDisk, fails: str) -> Iterator[int]:
    """Give the numbers of the writes or flushes to fail: all, or a few of those of a run in which none fails."""
    with disk.mounted() as mount:
        work = Work(mount / "store")
        disk.arm()
        work.run()
        counts = disk.counts()
    assert work.errors == []
    # The last of them come when the work is done, and no caller is left to be told.
    yield from evenly(range(1, counts[fails] * 9 // 10), _POINTS)


def test_a_repeated_fsync_is_found(tmp_path: Path) -> None:
    """What the lane relies on: the watcher tells a second fsync of one file from the first of another."""
    syncs = Syncs()
    fd = os.open(tmp_path / "a", os.O_CREAT | os.O_WRONLY)
    try:

        def fail(_: int) -> None:
            raise OSError(errno.EIO, "failed")

        syncs._fsync = fail  # type: ignore[assignment]
        for _ in range(2):
            with pytest.raises(OSError, match="failed"):
                syncs(fd)
    finally:
        os.close(fd)

    assert len(syncs.repeated) == 1
