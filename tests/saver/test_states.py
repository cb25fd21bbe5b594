"""Whatever happens to a saver in whatever state: nothing hangs, it is told, and the next save works.

``CKSTORE_CRASH=full`` tries every state with everything that can happen, else a few of them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, SaveAbandoned, SaveFailed, UnknownOutcome
from ckstore.saver.client import process
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import CRASH_FULL, require_program
from tests.support.stores import check_store

STATES = (*("starting", "idle", "staging", "hashing", "writing", "syncing", "committing", "just committed", "closing"),)
HAPPENS = ("kill", "stop", "memory", "full", "freeze")
SHORT = {("starting", "kill"), ("committing", "stop"), ("writing", "full"), ("just committed", "memory")}
CASES = [(state, what) for state in STATES for what in HAPPENS if CRASH_FULL or (state, what) in SHORT]
STALL_S = 3.0


def state_of(number: int) -> dict[str, Any]:
    return {"w": np.full(400_000, number, np.float32), "n": number}


@contextmanager
def frozen(mountpoint: Path) -> Iterator[None]:
    """Let no change of a filesystem be made meanwhile."""
    program = require_program("fsfreeze")
    subprocess.run([program, "--freeze", mountpoint], check=True, timeout=DEADLINE_S)
    try:
        yield
    finally:
        subprocess.run([program, "--unfreeze", mountpoint], check=True, timeout=DEADLINE_S)


@pytest.mark.crash
@pytest.mark.parametrize("state, what", CASES)
def test_the_loop_goes_on_and_the_next_save_works(
    state: str, what: str, tmp_path: Path, strike: Callable[..., Path]
) -> None:
    if what != "freeze":
        _try(Store.init(tmp_path / "store", chunk_bytes=2**20), state, what, strike)
        return
    with loop_filesystem("ext4", 128, tmp_path) as mountpoint:
        _try(Store.init(mountpoint / "store", chunk_bytes=2**20), state, what, strike)


def _try(store: Store, state: str, what: str, strike: Callable[..., Path]) -> None:
    before = process.reap()
    earlier = store.save(state_of(0), step=0)
    folder = strike(state, what, 2 if what == "kill" else 1)  # what is killed is tried again

    pending = store.save_async(state_of(1), step=1, stall_timeout_s=STALL_S)
    if state == "closing":
        pending.wait_staged(DEADLINE_S)
        store.close(0)
    if what == "freeze":
        wait_for(lambda: (folder / "struck-0").exists() or pending.done(), "it is in that state")
        with frozen(store.path.parent):
            (folder / "go-0").touch()
            error = pending.exception(DEADLINE_S)
        wait_for(
            lambda: process.reap() <= before + (store.background._client().pid() is not None),
            "what was killed has ended",
        )
    else:
        error = pending.exception(DEADLINE_S)

    store.save_async(state_of(2), step=2, stall_timeout_s=DEADLINE_S).result(DEADLINE_S)
    _check(store, error)
    assert store.info(0).id == earlier.id
    assert (store.load(0)["w"] == 0).all()
    assert (store.load(2)["w"] == 2).all()
    store.close()
    wait_for(lambda: process.reap() <= before, "every saver has ended")
    Store(store.path)  # what was left undone is done
    check_store(store.path)


def _check(store: Store, error: CkstoreError | None) -> None:
    """What was reported is so."""
    steps = {info.step for info in store.checkpoints()}
    if error is None:
        assert 1 in steps
        assert (store.load(1)["w"] == 1).all()
        return
    assert isinstance(error, SaveFailed)
    assert any(
        cause in error.message
        for cause in ("SIGKILL", "did nothing for", "not enough memory", "MemoryError", "No space left")
    ), error
    if not isinstance(error, UnknownOutcome):
        assert 1 not in steps, f"{type(error).__name__} was reported, and it appeared"
    assert isinstance(error, (SaveAbandoned, UnknownOutcome)) == ("did nothing for" in error.message)
