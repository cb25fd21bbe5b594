"""A checkpoint that another process holds locked is waited for, and then not passed over in silence."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ckstore import CkstoreWarning, Store
from ckstore.errors import InUse
from ckstore.fs import locks
from ckstore.ops.refs import latest_valid
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414 - a fixture
from tests.support.look import directory_of
from tests.support.meanwhile import elsewhere

_TIMEOUT_S = 30.0
HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("ready", flush=True)
if sys.stdin.readline() == "drop\\n":
    os.rename(sys.argv[1], sys.argv[2])
"""


class Holder:
    """Another process that has a checkpoint locked against all others."""

    def __init__(self, store: Store, step: int) -> None:
        trash = store.path / "trash" / f"main@{step}.0123456789ab"
        command = [sys.executable, "-c", HOLDER, str(directory_of(store, step)), str(trash)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def let_go(self, *, drop: bool = False) -> None:
        if self._process.returncode is None:
            self._process.communicate("drop\n" if drop else "", timeout=_TIMEOUT_S)


@pytest.fixture
def holder(store: Store) -> Iterator[Holder]:
    """Holds the newest of three checkpoints."""
    for step in (1, 2, 3):
        store.save({"step": step}, step)
    made = Holder(store, 3)
    yield made
    made.let_go()


@pytest.fixture
def when_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something once, when a lock is waited for."""

    def do(something: Callable[[], object]) -> None:
        once = iter([something])

        def sleep(seconds: float) -> None:
            next(once, lambda: time.sleep(seconds))()

        class Clock:
            monotonic = staticmethod(time.monotonic)

        Clock.sleep = staticmethod(sleep)  # type: ignore[attr-defined]
        monkeypatch.setattr(locks, "time", Clock)

    return do


READ: dict[str, Callable[[Store], int]] = {
    "load": lambda store: int(store.load("latest-valid")["step"]),
    "info": lambda store: store.info("latest-valid").step,
    "latest": lambda store: getattr(store.latest(valid=True), "step", -1),
    "load_into": lambda store: store.load_into({"step": 0}, "latest-valid").info.step,
}


@pytest.mark.parametrize("how", READ)
def test_one_that_stays_locked_is_passed_over_with_a_warning_that_names_the_process(
    store: Store, holder: Holder, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_valid, "LOCKED_S", 0.05)

    with pytest.warns(CkstoreWarning, match=rf"main@2.*main@3: locked by process {holder.pid} \(") as caught:
        step = READ[how](store)

    assert step == 2
    assert str(caught[0].message) in store.warnings
    holder.let_go()
    assert quietly(READ[how], store) == 3
    assert not any("latest-valid" in warning for warning in store.warnings)


def quietly(work: Callable[..., Any], *arguments: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return work(*arguments)


def test_one_that_is_let_go_in_time_is_read(
    store: Store, holder: Holder, when_waiting: Callable[[Callable[[], object]], None]
) -> None:
    when_waiting(holder.let_go)

    assert quietly(store.load, "latest-valid") == {"step": 3}


def test_one_that_is_dropped_meanwhile_is_no_loss_to_tell_of(
    store: Store, holder: Holder, when_waiting: Callable[[Callable[[], object]], None]
) -> None:
    when_waiting(lambda: holder.let_go(drop=True))

    assert quietly(store.load, "latest-valid") == {"step": 2}


def test_when_all_are_locked_the_error_names_them(
    store: Store, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_valid, "LOCKED_S", 0.05)
    for step in (1, 2):
        store.delete(step)

    for ask in (lambda: store.load("latest-valid"), lambda: store.latest(valid=True)):
        with pytest.raises(InUse, match=f"main@3: locked by process {holder.pid}"):
            ask()


def test_the_command_line_says_it(store: Store, holder: Holder, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_valid, "LOCKED_S", 0.05)

    shown = run("show", "latest-valid", "--store", store.path)

    assert shown.exit_code == 0
    assert shown.stderr.startswith("warning: latest-valid is main@2, since newer checkpoints are damaged or locked: ")
    assert f"main@3: locked by process {holder.pid}" in shown.stderr


@pytest.mark.usefixtures("holder")
def test_a_verification_does_not_call_right_what_it_could_not_look_at(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock_shared = locks.lock_shared
    monkeypatch.setattr(locks, "lock_shared", lambda path, **_: lock_shared(path, timeout_s=0.0))

    report = store.verify()
    with pytest.raises(InUse, match="another process"):
        store.verify(3)

    assert not report.ok
    assert [found.subject for found in report.findings if found.kind == "locked"] == ["main@3"]
    assert report.whole == ("main@1", "main@2")
    assert elsewhere(lambda: store.verify(2)).ok
