"""A save in the background: copied when the call returns, and then as `save` would have done it."""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ckstore import RetentionPolicy, Store
from ckstore.errors import (
    BadInput,
    CannotStore,
    CkstoreWarning,
    InUse,
    SaveAbandoned,
    SaveFailed,
    StepExists,
    UnknownOutcome,
)
from ckstore.model.manifest.manifest import Description
from ckstore.model.saver.messages import Message, Order
from ckstore.model.saver.status import STATUS_NAME
from ckstore.saver import wire
from ckstore.saver.client import process
from ckstore.saver.client.client import Client
from ckstore.saver.client.process import MARK
from ckstore.saver.client.queue import SaverLimits
from ckstore.saver.client.snapshot import Snapshot, places_of
from ckstore.saver.server.main import carry_out
from ckstore.tensors.state_capture import capture
from ckstore_cli.app import app
from tests.cli.test_command_line_page import keys, section
from tests.faults.shim import Family, Fault, environment
from tests.saver.conftest import DEADLINE_S, wait_for
from tests.support.requirements import CRASH_FULL, representatives
from tests.support.stores import check_store

ROUNDS = 500 if CRASH_FULL else 8
ROTATIONS = 1000 if CRASH_FULL else 12


def state_of(number: int) -> dict[str, Any]:
    return {
        "w": np.full(400_000, number, np.float32),
        "small": np.arange(9) + number,
        "step": number,
        "text": "x" * 5000,
    }


def is_state(loaded: dict[str, Any], number: int) -> bool:
    return (
        loaded["step"] == number
        and bool((loaded["w"] == number).all())
        and bool((loaded["small"] == np.arange(9) + number).all())
        and loaded["text"] == "x" * 5000
    )


def test_what_is_saved_is_the_state_at_the_call_with_all_that_was_said_of_it(store: Store) -> None:
    first = store.save(state_of(0), step=0)
    state = state_of(1)

    pending = store.save_async(
        state, step=1, metrics={"loss": 2.5, "odd": float("nan")}, metadata={"a": [1, None]}, message="m", tags=["best"]
    )
    state["w"][:] = -1
    state["small"][:] = -1

    assert pending.wait_staged(DEADLINE_S)
    info = pending.result(DEADLINE_S)
    assert pending.done()
    assert pending.progress == (pending.total_bytes, pending.total_bytes)
    assert (info.run, info.step, info.message, info.tags) == ("main", 1, "m", ("best",))
    assert (info.metrics["loss"], info.metadata, info.parent) == (2.5, {"a": [1, None]}, first.id)
    assert np.isnan(info.metrics["odd"])
    assert is_state(store.load(1), 1)
    assert [event.name for event in pending.events][:3] == ["copied", "staged", "staging"]
    assert pending.events[-1].name == "done"
    assert info.id == store.info(1).id
    check_store(store.path)


def test_each_checkpoint_is_of_one_step_though_the_state_changes_right_after_the_call(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=3)
    state = state_of(0)
    for number in range(ROUNDS):
        state["w"][:] = number
        state["small"][:] = np.arange(9) + number
        state["step"] = number
        pending = store.save_async(state, step=number, max_in_flight=2)
        state["w"][:] = -1
        state["small"][:] = -1
        if number % 7 == 0:
            assert pending.result(DEADLINE_S).warnings == ()
            assert is_state(store.load(number), number)
    assert store.background.wait(DEADLINE_S)
    assert [info.step for info in store.checkpoints()] == [ROUNDS - 3, ROUNDS - 2, ROUNDS - 1]
    for info in store.checkpoints():
        assert is_state(store.load(info), info.step)


def test_many_saves_leave_nothing_behind(store: Store) -> None:
    store.config.retention = RetentionPolicy(keep_last=3)
    w = np.zeros(300_000, np.float32)

    def save(number: int) -> None:
        w[0] = number
        store.save_async({"w": w}, step=number).result(DEADLINE_S)

    for number in range(5):
        save(number)
    descriptors = len(os.listdir("/proc/self/fd"))
    pid = _client(store).pid()
    assert pid is not None
    settled = 0, 0, 0
    for number in range(5, ROTATIONS):
        save(number)
        if number == ROTATIONS // 2:  # by now what grows to a size of its own, such as the log of the catalog, has it
            settled = _resident_bytes(pid), _resident_bytes(os.getpid()), _allocated_bytes(store.path)
    if CRASH_FULL:
        # A state is 1.2 MB and a manifest some KB: one state kept in 100 saves, or 10 KiB a save, would be 5 MiB more.
        assert _resident_bytes(pid) - settled[0] < 4 * 2**20
        assert _resident_bytes(os.getpid()) - settled[1] < 4 * 2**20
        # Three states are kept at either time, and the log of the catalog may have got its 4 MiB only now; one state
        # kept in 100 saves would be 6 MB more.
        assert _allocated_bytes(store.path) - settled[2] < 5 * 2**20

    # The thread of the client may still be about to give a snapshot back, or have a file of /proc open.
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, "every descriptor is closed")
    assert _client(store).pid() == pid
    assert len(os.listdir(f"/proc/{pid}/fd")) < 30
    assert os.listdir(store.path / "staging") == []
    assert len(store.checkpoints()) == 3
    check_store(store.path)


def _resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def _allocated_bytes(folder: Path) -> int:
    inodes = {(stat.st_dev, stat.st_ino): stat.st_blocks * 512 for stat in (p.lstat() for p in folder.rglob("*"))}
    return sum(inodes.values())


def test_saves_in_both_ways_follow_each_other(store: Store) -> None:
    pending = store.save_async(state_of(0))
    info = store.save(state_of(1))

    assert pending.done()
    assert (pending.step, info.step) == (0, 1)
    assert info.parent == pending.result().id
    third = store.save_async(state_of(2)).result(DEADLINE_S)
    assert (third.step, third.parent) == (2, info.id)


def test_errors_that_can_be_known_are_raised_at_the_call(store: Store) -> None:
    with pytest.raises(CannotStore, match="thing"):
        store.save_async({"thing": object()})
    invalid: tuple[dict[str, Any], ...] = (
        *({"max_in_flight": value} for value in (0, math.inf, 1.5, True, None, math.nan)),
        {"when_busy": "never"},
        *({"timeout_s": value} for value in (-1, math.nan, None, "1")),
        *({"nice": value} for value in (40, -1, 1.5, None, math.nan)),
        *({"stall_timeout_s": value} for value in (0, math.nan, None, "1")),
        {"run": "a/b"},
        {"tags": "best"},
    )
    for wrong in invalid:
        with pytest.raises(BadInput):
            store.save_async({"x": 1}, **wrong)
    assert _client(store).pid() is None


def test_a_warning_that_is_an_error_is_raised_before_anything_is_saved(store: Store) -> None:
    tagged = torch.zeros(2)
    tagged.mark_of_this_test = "x"  # type: ignore[attr-defined]

    with warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        warnings.filterwarnings("ignore", "a power cut may lose")
        with pytest.raises(CkstoreWarning, match="mark_of_this_test"):
            store.save_async({"w": tagged}, step=1)

    assert store.background.wait(DEADLINE_S)
    assert store.checkpoints() == []
    assert store.save_async({"w": tagged}, step=1).result(DEADLINE_S).step == 1
    check_store(store.path)


def test_an_error_comes_from_the_result_and_else_from_the_next_call(store: Store) -> None:
    store.save(state_of(0), step=0)

    read = store.save_async(state_of(1), step=0)
    with pytest.raises(StepExists):
        read.result(DEADLINE_S)
    assert store.background.wait(DEADLINE_S)

    store.save_async(state_of(1), step=0)
    with pytest.raises(StepExists):
        store.background.wait(DEADLINE_S)

    store.save_async(state_of(1), step=0)
    assert _client(store).wait(DEADLINE_S)
    with pytest.raises(StepExists) as raised:
        store.save_async(state_of(1), step=1)
    assert any("of the save of main@0 in the background" in note for note in raised.value.__notes__)
    assert [info.step for info in store.checkpoints()] == [0]
    assert store.save_async(state_of(1), step=1).result(DEADLINE_S).step == 1


def test_when_as_many_as_may_be_are_under_way(store: Store, strike: Any) -> None:
    folder = strike("hashing", "wait", 1)
    first = store.save_async(state_of(0), step=0)

    assert store.save_async(state_of(1), step=1, when_busy="skip").skipped
    with pytest.raises(InUse, match="main@0"):
        store.save_async(state_of(1), step=1, when_busy="error")
    with pytest.raises(InUse, match=r"after 0\.01 s"):
        store.save_async(state_of(1), step=1, timeout_s=0.01)
    assert not store.background.wait(0.01)
    with pytest.raises(TimeoutError, match="main@0"):
        first.result(0.01)

    (folder / "go-0").touch()
    second = store.save_async(state_of(1), step=1)
    assert first.done()
    assert second.result(DEADLINE_S).step == 1


def test_the_garbage_collector_runs_while_a_save_waits_for_another_one(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = strike("hashing", "wait", 1)
    store.save_async(state_of(0), step=0)
    changed = _client(store)._queue.changed
    real, found = changed.wait_for, []

    def wait_until(*given: Any) -> Any:
        found.append(gc.isenabled())
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(changed, "wait_for", wait_until)
        with pytest.raises(InUse, match=r"after 6 s"):
            store.save_async(state_of(1), step=1, timeout_s=6)  # longer than the longest pause

    (folder / "go-0").touch()
    assert store.background.wait(DEADLINE_S)
    assert found == [True]
    check_store(store.path)


def test_a_cancelled_save_is_not_published(store: Store, strike: Any) -> None:
    folder = strike("hashing", "wait", 1)
    pending = store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is hashing")

    assert not store.background.flush(0.01)
    (folder / "go-0").touch()

    with pytest.raises(SaveAbandoned):
        pending.result(DEADLINE_S)
    assert store.checkpoints() == []
    assert store.save_async(state_of(1), step=1).result(DEADLINE_S).step == 1
    assert store.background.flush(DEADLINE_S)
    assert not pending.cancel()
    assert os.listdir(store.path / "staging") == []


@pytest.mark.parametrize("if_exists", ["error", "replace", "keep"])
def test_what_another_process_saved_at_a_step_that_a_dead_saver_had_chosen_stays(store: Store, if_exists: str) -> None:
    store.save(state_of(0))
    captured = capture(state_of(1))
    places, nbytes = places_of(captured.sources)
    snapshot = Snapshot(nbytes)
    snapshot.fill(captured.sources, places)
    order = Order(1, "main", None, Description(), (), if_exists, captured=captured, places=places, tried_step=0)

    assert carry_out(store._context, order, snapshot.fd).step == 1
    assert [one.event for one in store.events()] == ["saved", "saved"]
    snapshot.close()
    assert is_state(store.load(0), 0)
    assert is_state(store.load(1), 1)


def test_a_saver_that_dies_is_replaced_once(store: Store, strike: Any) -> None:
    strike("committing", "kill", 1)

    assert store.save_async(state_of(0)).result(DEADLINE_S).step == 0
    assert is_state(store.load(0), 0)


def test_a_saver_that_dies_again_is_told_with_its_signal(store: Store, strike: Any) -> None:
    strike("writing", "kill", 2)

    with pytest.raises(SaveFailed, match="SIGKILL"):
        store.save_async(state_of(0), step=0).result(DEADLINE_S)
    assert store.save_async(state_of(1), step=1).result(DEADLINE_S).step == 1


@pytest.mark.parametrize("what", representatives(["stop", "full", "kill"], "kill"))
def test_what_a_saver_may_have_published_before_it_died_is_not_said_to_have_failed(
    store: Store, strike: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store.save(state_of(0), step=0)
    before = process.ENTRY
    folder = strike("hashing", what, 1)
    with monkeypatch.context() as first:
        first.setattr(process, "ENTRY", before)
        published = environment(Fault("kill-after", 1, families=Family.NAME), store.path / "checkpoints" / "main")
        for name, value in published.items():
            first.setenv(name, value)
        store.background.prewarm()

    pending = store.save_async(state_of(1), step=1, stall_timeout_s=DEADLINE_S)
    if what == "stop":
        wait_for((folder / "struck-0").exists, "the second is at it")
        _client(store)._queue.limits = SaverLimits(stall_timeout_s=0.5)
    error = pending.exception(DEADLINE_S)

    assert isinstance(error, UnknownOutcome)
    assert (folder / "struck-0").exists()
    assert is_state(store.load(1), 1)
    assert store.save_async(state_of(2), step=2).result(DEADLINE_S).step == 2


def test_a_saver_that_takes_the_place_of_another_knows_what_each_save_goes_on_from(store: Store, strike: Any) -> None:
    infos = [store.save_async(state_of(number), step=number).result(DEADLINE_S) for number in range(2)]
    _kill_saver(store)
    wait_for(lambda: _client(store).pid() is None, "its end is seen")
    folder = strike("hashing", "wait", 1)

    pending = [store.save_async(state_of(2), step=2, max_in_flight=3)]
    wait_for((folder / "struck-0").exists, "it is begun")
    store.load(0)
    pending += [store.save_async(state_of(number), step=number, max_in_flight=3) for number in (3, 4)]
    _kill_saver(store)

    infos += [one.result(DEADLINE_S) for one in pending]
    assert [info.parent for info in infos] == [None, infos[0].id, infos[1].id, infos[0].id, infos[3].id]


@pytest.mark.parametrize("what, times", representatives([("stop", 1), ("kill", 2)], ("kill", 2)))
def test_saves_that_a_lost_saver_had_not_begun_are_made_by_another_in_their_order(
    store: Store, strike: Any, what: str, times: int
) -> None:
    folder = strike("hashing", what, times)
    first = store.save_async(state_of(0), step=5, max_in_flight=3, stall_timeout_s=5)
    second = store.save_async(state_of(1), step=4, max_in_flight=3, stall_timeout_s=5)
    wait_for((folder / "struck-0").exists, "the first is begun")

    assert isinstance(first.exception(DEADLINE_S), SaveAbandoned if what == "stop" else SaveFailed)
    third = store.save_async(state_of(2), step=3, max_in_flight=3, stall_timeout_s=DEADLINE_S)

    infos = [second.result(DEADLINE_S), third.result(DEADLINE_S)]
    assert [info.step for info in infos] == [4, 3]
    assert infos[1].parent == infos[0].id
    assert {info.step for info in store.checkpoints()} == {3, 4}
    assert is_state(store.load(4), 1)
    assert is_state(store.load(3), 2)


def test_a_saver_that_cannot_be_sent_its_orders_is_told_with_the_cause(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = wire.send

    def no_memory(sock: Any, message: Message, *args: Any, **kwargs: Any) -> bool:
        if isinstance(message, Order):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return sent(sock, message, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(wire, "send", no_memory)
        with pytest.raises(SaveFailed, match=r"sending its orders failed: .*memory"):
            store.save_async(state_of(0), step=0).result(DEADLINE_S)
    assert store.save_async(state_of(1), step=1).result(DEADLINE_S).step == 1


def test_a_forked_child_holds_no_snapshot_by_a_descriptor(store: Store, strike: Any) -> None:
    folder = strike("syncing", "wait", 1)
    pending = store.save_async(state_of(0), step=0)
    wait_for((folder / "struck-0").exists, "it is syncing")

    child = os.fork()
    if not child:
        held = [
            fd for fd in Path("/proc/self/fd").iterdir() if fd.exists() and "ckstore-snapshot" in str(fd.readlink())
        ]
        os._exit(len(held))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (folder / "go-0").touch()
    assert pending.result(DEADLINE_S).step == 0


@pytest.mark.parametrize(
    "said",
    [
        {"run": "\x1b[2J"},
        {"state": "\x1b[2J"},
        {"done_bytes": "many"},
        {"more": 1},
        {"since": None},
    ],
    ids=str,
)
def test_a_process_that_only_looks_like_a_saver_is_not_listed(store: Store, said: dict[str, Any]) -> None:
    page = {"store": str(store.path), "trainer": 1, "state": "idle", "run": "gpt", "step": 3, "done_bytes": 0}
    page |= {"total_bytes": 0, "since": 0.0}
    code = (
        "import os, sys; page = os.memfd_create(sys.argv[2]); os.write(page, sys.argv[3].encode()); "
        "print(flush=True); sys.stdin.read()"
    )
    for asked, count in ((page, 1), (page | said, 0)):
        command = [sys.executable, "-c", code, MARK, STATUS_NAME, json.dumps(asked)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            assert len(store.savers()) == count


def test_the_memory_of_a_saver_is_known_and_can_be_made_before(store: Store) -> None:
    state = state_of(0)
    nbytes = store.background.staging_bytes(state)
    assert nbytes >= state["w"].nbytes

    store.background.prewarm(state)
    pid = _client(store).pid()
    assert pid is not None
    assert store.save_async(state).result(DEADLINE_S).step == 0
    assert _client(store).pid() == pid


def test_the_savers_of_a_store_can_be_listed(store: Store, strike: Any) -> None:
    folder = strike("syncing", "wait", 1)
    pending = store.save_async(state_of(0), step=3, run="gpt")
    wait_for((folder / "struck-0").exists, "it is syncing")

    (found,) = Store(store.path, readonly=True).savers()
    shown = CliRunner().invoke(app, ["savers", "--store", str(store.path)])
    documents = CliRunner().invoke(app, ["savers", "--json", "--store", str(store.path)])

    assert (found.pid, found.trainer, found.state) == (_client(store).pid(), os.getpid(), "syncing")
    assert (found.run, found.step, found.done_bytes) == ("gpt", 3, found.total_bytes)
    assert shown.exit_code == 0
    assert "gpt@3" in shown.stdout
    document = json.loads(documents.stdout)
    assert document["pid"] == found.pid
    assert list(document) == ["v", *keys(section("`ckstore savers`"))]
    (folder / "go-0").touch()
    pending.result(DEADLINE_S)


def test_a_saver_interrupts_no_thread_that_computes(store: Store, strike: Any) -> None:
    folder = strike("writing", "wait", 1)
    pending = store.save_async({"w": np.zeros(40_000_000, np.uint8)}, nice=3)
    wait_for((folder / "struck-0").exists, "it is writing")
    pid = _client(store).pid()
    assert pid is not None

    threads = [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
    policies = {os.sched_getscheduler(tid) for tid in threads}
    niceness = {os.getpriority(os.PRIO_PROCESS, tid) for tid in threads}
    (folder / "go-0").touch()
    pending.result(DEADLINE_S)

    assert len(threads) > 1
    assert policies == {os.SCHED_BATCH}
    assert niceness == {os.getpriority(os.PRIO_PROCESS, 0) + 3}


def test_a_closed_handle_lets_its_saver_end_and_can_save_again(store: Store) -> None:
    store.save_async(state_of(0)).result(DEADLINE_S)
    store.close()
    wait_for(lambda: _client(store).pid() is None, "the saver has ended")

    assert store.save_async(state_of(1)).result(DEADLINE_S).step == 1


def test_a_store_that_has_gone_is_told(store: Store, tmp_path: Path) -> None:
    store.path.rename(tmp_path / "elsewhere")
    try:
        pending = store.save_async(state_of(0))
        assert pending.exception(DEADLINE_S) is not None
    finally:
        (tmp_path / "elsewhere").rename(store.path)


def _kill_saver(store: Store) -> None:
    pid = _client(store).pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def _client(store: Store) -> Client:
    return store.background._client()
