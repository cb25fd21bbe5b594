"""The end of a mirror process: at SIGTERM, and after a day without a successful push."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from ckstore.remote.mirror import mirror_process as starting
from ckstore.remote.mirror import mirror_server as process
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.saver import helper_start
from ckstore.saver.server.ending import Ended, Ending
from ckstore.saver.server.status_page import StatusPage
from ckstore.store import context_of
from tests.remote.test_mirror import mirrors_of, wait_for
from tests.remote.test_push import state


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with three checkpoints that its mirror lacks; no process is started."""
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    made = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    for step in (1, 2, 3):
        made.save(state(step), step=step)
    return made


@pytest.fixture
def _signals() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGALRM)]
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before:
        signal.signal(number, handler)


def test_sigterm_ends_a_process_that_has_pushed_everything(tmp_path: Path) -> None:
    store = Store.open_or_init(tmp_path / "a", mirror=tmp_path / "m")
    store.save(state(1), step=1)
    try:
        wait_for(lambda: [one.state for one in store.savers()] == ["idle"], "it never had nothing left")
        (pid,) = mirrors_of(tmp_path / "a")
        begun_s = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not mirrors_of(tmp_path / "a"), "it goes on")
        assert time.monotonic() - begun_s < 30  # it lingers for 60 s
    finally:
        for pid in mirrors_of(tmp_path / "a"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("_signals")
def test_a_process_asked_to_end_during_a_push_pushes_the_rest(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Mirror.step

    def asked(mirror: Mirror) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return step(mirror)

    monkeypatch.setattr(Mirror, "step", asked)
    ending = Ending()
    ending.begin()
    begun_s = time.monotonic()

    with StatusPage(str(store.path)) as page, pytest.raises(Ended) as ended:
        process.serve(context_of(store), Mirror(context_of(store)), page, ending=ending)

    assert ended.value.code == 0
    assert time.monotonic() - begun_s < 15  # it waits for nothing
    assert store.mirror_status().behind == ()  # type: ignore[union-attr]


@pytest.mark.usefixtures("_signals")
def test_a_push_that_does_not_end_is_abandoned_after_some_seconds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(_: Any) -> bool:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(35)
        return False

    monkeypatch.setattr(Mirror, "step", stuck)
    ending = Ending(last_s=0.1)
    ending.begin()
    begun_s = time.monotonic()

    with StatusPage(str(store.path)) as page, pytest.raises(Ended):
        process.serve(context_of(store), Mirror(context_of(store)), page, ending=ending)

    assert time.monotonic() - begun_s < 30
    lock = starting.lock_mirror(context_of(store))
    assert lock is not None
    lock.release()


def test_a_process_refused_by_its_mirror_for_long_ends_and_the_reason_is_kept(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").rename(tmp_path / "away")
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    with StatusPage(str(store.path)) as page:
        process.serve(context_of(store), Mirror(context_of(store)), page, patience_s=7200)

    assert 7200 <= now[0] - 1000 <= 7500
    status = store.mirror_status()
    assert status is not None
    assert len(status.behind) == 3
    assert status.problem
    (tmp_path / "away").rename(tmp_path / "m")
    with StatusPage(str(store.path)) as page:
        process.serve(context_of(store), Mirror(context_of(store)), page, linger_s=0)
    assert store.mirror_status().behind == ()  # type: ignore[union-attr]
