"""A save whose storage fails for a moment is tried again, as a new save; one that fails for good can be tolerated."""

from __future__ import annotations

import errno
import gc
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import NotSaved, RetentionPolicy, Store
from ckstore.errors import (
    BadInput,
    CkstoreError,
    CkstoreWarning,
    InsufficientSpace,
    ReadOnlyStore,
    SaveFailed,
    StateChanged,
    UnknownOutcome,
)
from ckstore.ops import pace
from ckstore.ops.save import save as save_module
from ckstore.training import should_stop, stop_on_signals
from tests.support.failing_disk import failing_disk, make_image
from tests.support.failing_sync import FOR_GOOD, FailingSync
from tests.support.stores import check_store

MIB = 2**20
PASSING = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC, errno.EDQUOT]
ROOT = Path(__file__).resolve().parents[3]


def state_of(seed: int) -> dict[str, Any]:
    data = np.random.default_rng(seed).integers(0, 256, 3 * MIB, dtype=np.uint8)
    return {"w": data, "small": [np.arange(seed, seed + 9), seed]}


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingSync]:
    failing = FailingSync()
    monkeypatch.setattr(os, "fsync", failing)
    yield failing
    failing.let_go()


def inodes_in(root: Path, *folders: str) -> set[int]:
    return {path.stat().st_ino for folder in folders for path in (root / folder).rglob("*")}


def check_after(store: Store, sync: FailingSync) -> None:
    """Look at a store when nothing fails any more."""
    sync.arm(0, 0)
    sync.let_go()
    with Store.open(store.path) as opened:
        opened.gc()
    check_store(store.path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses take no time; gives how long they were."""
    pauses: list[float] = []
    monkeypatch.setattr("ckstore.ops.context.pause", lambda seconds, is_over: pauses.append(seconds))
    return pauses


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as made:
        yield made


@pytest.mark.parametrize("code", PASSING)
def test_a_failed_sync_at_each_place_is_followed_by_a_new_save(
    store: Store, sync: FailingSync, quick: list[float], code: int
) -> None:
    store.save(state_of(0), step=0)
    (sync_count,) = sync.counts.values()
    assert sync_count > 4  # blobs, a pack, the manifest, directories

    for at in range(1, sync_count + 1):
        sync.arm(at, code=code)
        info = store.save(state_of(at), step=at)
        assert len(sync.failed) == at

        assert any("took 2 tries, since the first failed" in text for text in info.warnings)
        assert info.counters is not None
        assert info.counters.retry_count == 1
        assert np.array_equal(store.load(info)["w"], state_of(at)["w"])
    # What had failed to reach the disk has no name but perhaps one on its way out.
    assert not sync.inodes() & inodes_in(store.path, "checkpoints", "blobs", "staging")
    assert len(quick) == sync_count
    assert store.verify().ok
    check_after(store, sync)


@pytest.mark.root
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_what_is_saved_after_a_write_that_a_disk_refused_survives_a_restart(tmp_path: Path, at: int) -> None:
    """With the pages and the write-back of a real kernel: the disk under an ext4 refuses one write."""
    make_image("ext4", tmp_path / "image", 64)
    with failing_disk("ext4", tmp_path / "image", tmp_path) as disk:
        with disk.mounted() as mount:
            store = Store.init(mount / "store", chunk_bytes=MIB)
            saved = [store.save(state_of(0), step=0)]
            disk.arm("write", at)
            for step in (1, 2):
                try:
                    saved.append(store.save(state_of(step), step=step, retries=5, try_for_s=60))
                except SaveFailed as error:
                    # The kernel wrote its journal at that moment, as on a busy machine: no later save can work.
                    if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EROFS:
                        raise
            assert disk.heal()[1] == 1
        disk.repair()
        with disk.mounted() as mount:
            again = Store.open(mount / "store")
            for info in saved:
                assert np.array_equal(again.load(info)["w"], state_of(info.step)["w"])
            assert again.verify().ok


def test_on_a_shared_filesystem_nothing_of_the_failed_try_is_used_either(
    store: Store, sync: FailingSync, quick: list[float]
) -> None:
    store.config.shared = True
    with Store.open(store.path) as shared:
        for at in range(1, 8):
            sync.arm(at)
            info = shared.save(state_of(at), step=at)

            assert np.array_equal(shared.load(info)["w"], state_of(at)["w"])
            assert not sync.inodes() & inodes_in(store.path, "checkpoints", "blobs")
    assert len(quick) == 7


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_storage_that_fails_for_good_is_tried_so_often_and_leaves_nothing(
    store: Store, sync: FailingSync, quick: list[float], retries: int
) -> None:
    store.save(state_of(0), step=0)
    sync.arm(1, tries=FOR_GOOD)

    with pytest.raises(SaveFailed, match="Input/output error"):
        store.save(state_of(1), step=1, retries=retries)
    sync.arm(0, 0)

    assert quick == [0.25, 1.0, 4.0][:retries]
    assert [info.step for info in store.checkpoints()] == [0]
    assert os.listdir(store.path / "staging") == []
    kinds = [event.event for event in store.events()]
    assert kinds.count("retried") == retries
    assert kinds.count("failed") == 1
    check_after(store, sync)


def test_the_settings_of_the_store_hold_unless_a_call_says_otherwise(
    store: Store, sync: FailingSync, quick: list[float]
) -> None:
    store.config.save_retries = 0
    sync.arm(1)
    with pytest.raises(SaveFailed):
        store.save(state_of(1), step=1)
    assert quick == []

    sync.arm(1)
    store.save(state_of(1), step=1, retries=1)
    store.config.save_retries = 4
    sync.arm(1, tries=4)
    store.save(state_of(2), step=2)

    assert len(quick) == 5


def test_a_commit_is_tried_again(store: Store, sync: FailingSync, quick: list[float], tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(bytes(state_of(3)["w"]))
    sync.arm(2)

    info = store.commit(tmp_path / "file.bin", 3)

    assert len(quick) == 1
    assert store.verify(info).ok
    check_after(store, sync)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EMFILE, errno.ENAMETOOLONG])
def test_what_only_a_person_can_change_is_not_tried_again(
    store: Store, sync: FailingSync, quick: list[float], code: int
) -> None:
    sync.arm(1, code=code)

    with pytest.raises(SaveFailed):
        store.save(state_of(1), step=1, retries=5)

    assert quick == []


def test_an_unknown_outcome_is_neither_tried_again_nor_tolerated(
    store: Store, monkeypatch: pytest.MonkeyPatch, quick: list[float]
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/checkpoints/main"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(UnknownOutcome):
        store.save(state_of(1), step=1, retries=5, on_failure="warn")
    assert quick == []

    monkeypatch.undo()
    with Store.open(store.path) as again:  # the same save again finds what was published, and adds no second one
        first = again.info(1)
        assert again.save(state_of(1), step=1).id == first.id
        assert len(again.checkpoints(superseded=True)) == 1
    check_store(store.path)


def test_a_state_that_changes_in_a_pause_is_not_saved_as_one(store: Store, sync: FailingSync) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.zeros(MIB)

    class Changing(type(store._context.watch)):  # type: ignore[misc]
        def pause(self, seconds: float, is_over: object) -> None:
            weight.add_(1)

    store._context.watch = Changing()
    sync.arm(1)

    with pytest.raises(StateChanged):
        store.save({"w": weight}, step=1)

    assert store.checkpoints() == []
    check_after(store, sync)


def test_the_step_that_the_store_chooses_is_one_step_however_often_it_is_tried(
    store: Store, sync: FailingSync, quick: list[float]
) -> None:
    sync.arm(2, tries=2)

    assert [store.save(state_of(i)).step for i in range(3)] == [0, 1, 2]
    assert len(quick) == 2


def test_what_is_committed_is_not_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, quick: list[float]
) -> None:
    """Otherwise the same state would be saved at two steps."""

    def failing(*_: object) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(save_module, "drop_older", failing)
    with pytest.raises(CkstoreError, match="Input/output error"):
        store.save(state_of(1), retries=5)
    monkeypatch.undo()

    assert quick == []
    assert [info.step for info in store.checkpoints()] == [0]


# ---------------------------------------------------------------- a full disk


@pytest.mark.root
def test_a_full_disk_that_gets_space_is_waited_for(
    make_filesystem: Callable[[str, int], Path], caplog: pytest.LogCaptureFixture
) -> None:
    mount = make_filesystem("ext4", 64)
    store = Store.init(mount / "store", chunk_bytes=MIB)
    store.save({"w": np.zeros(1000)}, step=0)
    (mount / "ballast").write_bytes(b"x" * (store_free(mount) - 8 * MIB))
    state = {"w": np.random.default_rng(1).integers(0, 256, 20 * MIB, dtype=np.uint8)}
    with pytest.raises(InsufficientSpace, match="the save needs"):
        store.save(state, step=1)
    timer = threading.Timer(1.5, (mount / "ballast").unlink)
    timer.start()

    begun = time.monotonic()
    info = store.save(state, step=1, wait_for_space_s=60)
    took_s = time.monotonic() - begun
    timer.join()

    assert 1 < took_s < 10  # not the length of the pause: it looks for space meanwhile
    assert np.array_equal(store.load(info)["w"], state["w"])
    assert len([one for one in caplog.messages if "waiting for space, 60 s at most" in one]) == 1
    check_store(store.path)


@pytest.mark.root
def test_a_disk_that_stays_full_is_waited_for_no_longer(make_filesystem: Callable[[str, int], Path]) -> None:
    mount = make_filesystem("ext4", 64)
    store = Store.init(mount / "store", chunk_bytes=MIB)
    begun = time.monotonic()

    with pytest.raises(InsufficientSpace, match="the save needs"):
        store.save({"w": np.random.default_rng(1).bytes(80 * MIB)}, step=1, wait_for_space_s=2)

    assert 1.5 < time.monotonic() - begun < 20
    assert os.listdir(store.path / "staging") == []
    check_store(store.path)


@pytest.mark.root
def test_a_disk_that_fills_in_the_middle_and_gets_space_again(
    make_filesystem: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = make_filesystem("ext4", 64)
    store = Store.init(mount / "store", chunk_bytes=MIB)
    state = {"w": np.random.default_rng(1).integers(0, 256, 20 * MIB, dtype=np.uint8)}
    monkeypatch.setattr(save_module, "check_space", lambda *_: ())  # as if others filled it after the check
    (mount / "ballast").write_bytes(b"x" * (store_free(mount) - 8 * MIB))
    timer = threading.Timer(1.0, (mount / "ballast").unlink)
    timer.start()

    info = store.save(state, step=1, retries=0, wait_for_space_s=30)
    timer.join()

    assert np.array_equal(store.load(info)["w"], state["w"])
    check_store(store.path)


@pytest.mark.root
def test_a_disk_that_is_waited_for_is_made_room_on_with_each_try(make_filesystem: Callable[[str, int], Path]) -> None:
    """What may be dropped by then is dropped, here a checkpoint whose pin goes while the save waits."""
    mount = make_filesystem("ext4", 64)
    store = Store.init(mount / "store", chunk_bytes=MIB)
    for step in (1, 2):
        store.save({"w": np.random.default_rng(step).integers(0, 256, 20 * MIB, dtype=np.uint8)}, step=step)
    store.config.make_room = RetentionPolicy(keep_last=1)
    pin = store.pin(1, "for the paper")
    other = Store.open(store.path)
    timer = threading.Timer(1.0, other.unpin, (pin,))
    timer.start()

    info = store.save(
        {"w": np.random.default_rng(3).integers(0, 256, 20 * MIB, dtype=np.uint8)}, step=3, wait_for_space_s=60
    )
    timer.join()

    assert [one.step for one in store.checkpoints()] == [2, 3]
    assert any("dropped main@1 to make room" in text for text in info.warnings)
    check_store(store.path)


def store_free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


# ---------------------------------------------------------------- a pause ends


@pytest.fixture
def no_end() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGALRM, before[1])
    pace.process_ends_in(math.inf)


@pytest.mark.usefixtures("no_end")
def test_ctrl_c_in_a_pause_ends_the_save_at_once_and_leaves_nothing(store: Store, sync: FailingSync) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    sync.arm(1, tries=FOR_GOOD)
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 2.5)

    with pytest.raises(KeyboardInterrupt):
        store.save(state_of(1), step=1, try_for_s=600)
    sync.arm(0, 0)

    assert time.monotonic() - begun < 10
    assert os.listdir(store.path / "staging") == []
    store.save(state_of(1), step=1)
    check_after(store, sync)


@pytest.mark.usefixtures("no_end")
def test_a_signal_that_ends_the_training_ends_a_pause_and_its_grace_ends_the_tries(
    store: Store, sync: FailingSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckstore.model.settings.patience._FIRST_PAUSE_S", 25.0)
    stop_on_signals(signal.SIGUSR1, grace_s=1.5)
    sync.arm(1, tries=FOR_GOOD)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    begun = time.monotonic()

    with pytest.raises(SaveFailed):  # otherwise it would go on for minutes
        store.save(state_of(1), step=1, retries=9)
    timer.join()

    assert should_stop()
    assert 2.0 < time.monotonic() - begun < 20
    assert len(sync.failed) == 3  # the first, one at the signal, and one at the end of the grace


@pytest.mark.usefixtures("no_end")
def test_after_the_signal_a_save_is_tried_again_until_the_grace_is_over(store: Store, sync: FailingSync) -> None:
    stop_on_signals(signal.SIGUSR1, grace_s=30)
    os.kill(os.getpid(), signal.SIGUSR1)
    sync.arm(1, tries=3)

    info = store.save(state_of(1), step=1, retries=0)

    assert info.counters is not None
    assert info.counters.retry_count == 3


@pytest.mark.parametrize("wrong", [-1, True, "20", math.nan])
def test_a_grace_that_cannot_be_meant_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="grace_s must be"):
        stop_on_signals(signal.SIGUSR1, grace_s=wrong)


KILLED = """
import errno, os, sys
import numpy as np
from ckstore import Store

store = Store.open(sys.argv[1])
real = os.fsync

def fsync(fd):
    if "/staging/" in os.readlink(f"/proc/self/fd/{fd}"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(fd)

os.fsync = fsync
store._context.watch.pause = lambda *_: (print("pauses", flush=True), sys.stdin.readline())
store.save({"w": np.ones(10**6)}, step=2)
"""


@pytest.mark.crash
def test_a_kill_in_a_pause_leaves_nothing_half_made(store: Store) -> None:
    store.save(state_of(1), step=1)
    running = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(store.path)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stdin is not None
    assert running.stdout.readline() == "pauses\n"
    assert os.listdir(store.path / "staging") == []  # already in the pause, not only after a sweep
    running.kill()
    running.wait()
    running.stdout.close()
    running.stdin.close()

    with Store.open(store.path) as again:
        assert [info.step for info in again.checkpoints()] == [1]
        again.save(state_of(2), step=2)
    check_store(store.path)


# ---------------------------------------------------------------- a failure that does not end the training


def test_a_failed_save_is_not_a_checkpoint_and_a_save_that_works_resets_the_count(
    store: Store, sync: FailingSync, caplog: pytest.LogCaptureFixture
) -> None:
    store.config.failed_saves_most = 2
    with Store.open(store.path) as training:
        outcomes: list[Any] = []
        for step, fails in enumerate([True, True, False, True, True], start=1):
            sync.arm(1, tries=FOR_GOOD if fails else 0)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                outcomes.append(training.save(state_of(step), step=step, retries=0, on_failure="warn"))
            assert [f"main@{step} is not saved" in str(one.message) for one in seen] == [True] * fails
        sync.arm(1, tries=FOR_GOOD)
        with pytest.raises(SaveFailed, match="Input/output error"):
            training.save(state_of(6), step=6, retries=0, on_failure="warn")
        sync.arm(0, 0)

    assert [bool(one) for one in outcomes] == [False, False, True, False, False]
    failed = outcomes[1]
    assert isinstance(failed, NotSaved)
    assert (failed.name, failed.in_a_row, type(failed.error)) == ("main@2", 2, SaveFailed)
    assert [info.step for info in store.checkpoints()] == [3]
    told = [one for one in caplog.messages if "saves failed" in one]
    assert len(told) == 1
    assert told[0].startswith(
        "5 saves failed; the last checkpoint saved by this process: main@3. The last failure: saving main@6 failed"
    )
    check_after(store, sync)


def test_a_result_that_is_kept_does_not_keep_the_state(store: Store, sync: FailingSync) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.arange(50_000.0)
    freed = weakref.ref(weights)
    sync.arm(1, tries=FOR_GOOD)
    with pytest.warns(CkstoreWarning, match="is not saved"):
        failed = store.save({"w": weights}, step=1, retries=0, on_failure="warn")
    sync.arm(0, 0)
    del weights
    gc.collect()

    assert isinstance(failed, NotSaved)
    assert isinstance(failed.error.__cause__, OSError)
    assert freed() is None
    check_after(store, sync)


def test_mistakes_of_the_caller_are_raised_whatever_a_failure_does(store: Store, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="on_failure must be 'raise' or 'warn'"):
        store.save({}, on_failure="ignore")  # type: ignore[call-overload]
    with pytest.raises(BadInput, match="on_failure must be"):
        store.save_async({}, on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="retries must be"):
        store.save({}, retries=-1, on_failure="warn")
    with pytest.raises(BadInput):
        store.save({"w": object()}, on_failure="warn")
    with pytest.raises(BadInput):
        store.commit(tmp_path / "nothing", on_failure="warn")
    store.save({"a": 1}, step=1)
    with Store.open(store.path, readonly=True) as reader, pytest.raises(ReadOnlyStore):
        reader.save({"a": 2}, step=2, on_failure="warn")
    assert store.checkpoints()[-1].step == 1


TOLERANT = """
import errno, os, sys
from ckstore import Store

store = Store.open(sys.argv[1])
real = os.fsync

def fsync(fd):
    if "/staging/" in os.readlink(f"/proc/self/fd/{fd}"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(fd)

os.fsync = fsync
assert not store.save({"a": 1}, step=1, retries=0, on_failure="warn")
if os.fork() == 0:
    sys.exit(0)  # a child has nothing to tell
os.wait()
"""


def test_a_program_that_ends_lists_its_failed_saves_once_more(store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TOLERANT, str(store.path)],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
        timeout=60,
    )

    expected = "1 save failed; this process saved no checkpoint. The last failure: saving main@1 failed"
    assert done.stderr.count(expected) == 1


def test_a_warning_that_is_an_error_ends_the_training(store: Store, sync: FailingSync) -> None:
    sync.arm(1, tries=FOR_GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CkstoreWarning, match="is not saved"):
            store.save(state_of(1), step=1, retries=0, on_failure="warn")
    sync.arm(0, 0)


def test_tries_are_counted_among_the_metrics(
    store: Store, sync: FailingSync, quick: list[float], tmp_path: Path
) -> None:
    sync.arm(1, tries=2)
    store.save(state_of(1), step=1)

    store.write_metrics(tmp_path / "metrics.prom")

    text = (tmp_path / "metrics.prom").read_text()
    assert f'ckstore_save_retries_total{{store="{store.path}"}} 2\n' in text
    assert 'outcome="saved"' in text
    assert len(quick) == 2


def test_a_short_pause_is_not_logged_and_a_long_one_once(
    store: Store, sync: FailingSync, quick: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ckstore")
    sync.arm(1)
    store.save(state_of(1), step=1)
    assert not [one for one in caplog.messages if "trying again" in one]

    sync.arm(1, tries=5)
    store.save(state_of(2), step=2, retries=5)

    assert len([one for one in caplog.messages if "saving main@2: Input/output error; trying again" in one]) == 1
    assert len(quick) == 6
