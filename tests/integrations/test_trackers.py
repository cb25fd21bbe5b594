"""Checkpoints are logged as references to the run of a tracker, which is kept with them, and no save waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ckstore import BadInput, CannotStore, Ranks, StepExists, Store
from ckstore.integrations import trackers
from ckstore.integrations.trackers import track
from ckstore_cli.app import app
from tests.saver.conftest import wait_for
from tests.support.stores import check_store
from tests.support.tracker_standins import KINDS, StandIn


@pytest.fixture(params=KINDS)
def tracker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    for kind in KINDS:
        monkeypatch.delitem(sys.modules, kind, raising=False)
    made = StandIn(request.param)
    made.install(monkeypatch.setitem)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def state(value: float) -> dict[str, Any]:
    return {"w": np.full(1000, value)}


def about_logging(store: Store) -> list[str]:
    return [warning for warning in store.warnings if "not logged" in warning]


def untracked(store: Store) -> list[int | None]:
    return [event.step for event in store.events() if event.event == "untracked"]


def test_each_checkpoint_is_logged_once_by_its_id_and_names_its_run(tracker: StandIn, store: Store) -> None:
    tracking = track(store)
    first = store.save(state(1), step=1, metrics={"loss": float("nan"), "n": 2})
    second = store.save_async(state(2), step=2, metadata={"mine": 1}).result()
    folder = store.path.parent / "checkpoint-3"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"weights")
    third = store.commit(folder, run="files")
    again = store.save(state(5), step=1, if_exists="replace")  # after a rollback
    store.save(state(5), step=1, if_exists="keep")

    assert tracking.wait(60)
    assert not about_logging(store)
    assert [record["id"] for record in tracker.logged] == [first.id, second.id, third.id, again.id]
    assert tracker.logged[0]["metrics"] == {"loss": "nan", "n": 2}
    assert [record["ref"] for record in tracker.logged] == ["main@1", "main@2", "files@3", "main@1"]
    assert tracker.logged[1]["size_bytes"] == second.logical_bytes
    assert tracker.logged[1]["new_bytes"] == second.new_bytes
    assert tracker.latest == (None if tracker.kind == "trackio" else "main@1")
    assert second.metadata["mine"] == 1
    for info in (first, second, third, again):
        ((kind, run),) = [(one["kind"], one["run"]) for one in info.metadata["tracked_by"]]
        assert (kind, run) == (tracker.kind, "run-1")
    if tracker.kind == "wandb":
        assert tracker.urls[0] == f"ckstore://{store.path}/main/{first.id}"
    check_store(store.path)


def test_log_show_and_the_report_have_the_run(tracker: StandIn, store: Store) -> None:
    if tracker.kind == "mlflow":
        tracker.module.uri = "https://me:secret@tracking.example.org/base?token=secret"
    store.save(state(0), step=0)
    track(store)
    store.save(state(1), step=1)

    def printed(*words: str) -> str:
        result = CliRunner().invoke(app, ["--store", str(store.path), *words])
        assert result.exit_code == 0, result.output
        return result.output

    log = printed("log").splitlines()
    assert [f"{tracker.kind}:run-1" in line for line in log] == [False, True, False]
    documents = [json.loads(line) for line in printed("log", "--json").splitlines()]
    assert [document["metadata"].get("tracked_by", [{}])[0].get("run") for document in documents] == ["run-1", None]
    assert "secret" not in json.dumps(documents)
    shown = printed("show", "main@1")
    assert f"tracked by {tracker.kind} " in shown
    assert "tracked by" not in printed("show", "main@0").partition("metadata")[0]
    if tracker.kind == "mlflow":
        assert "https://tracking.example.org/base/#/experiments/7/runs/run-1" in shown
    report = store.path.parent / "report.html"
    printed("report", "-o", str(report))
    assert "Tracked by" in report.read_text()
    assert "run-1" in report.read_text()
    check_store(store.path)


@pytest.mark.parametrize("kind", [ConnectionError, SystemExit])
def test_a_tracker_that_fails_is_one_warning_and_an_event_for_each_checkpoint(
    kind: type[BaseException], tracker: StandIn, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise kind("the server is away")

    tracking = track(store)
    tracker.act = fail
    infos = [store.save(state(step), step=step) for step in (1, 2)]
    assert tracking.wait(60)

    assert [info.warnings for info in infos] == [(), ()]
    said = [record.getMessage() for record in caplog.records if "not logged" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("main@1 is saved, but was not logged to its tracker: ")
    assert said[0].endswith(f"{kind.__name__}: the server is away")
    assert untracked(store) == [1, 2]
    assert "the server is away" in about_logging(store)[0]

    tracker.act = lambda: None
    store.save(state(3), step=3)
    assert tracking.wait(60)
    assert not about_logging(store)
    assert [record["step"] for record in tracker.logged] == [3]
    check_store(store.path)


def test_a_tracker_that_hangs_delays_no_save_and_what_waits_for_it_is_bounded(
    tracker: StandIn, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_MOST_WAITING", 2)
    answers = threading.Event()
    tracker.act = lambda: answers.wait(120)
    tracking = track(store)
    for step in range(4):
        store.save(state(step), step=step)

    assert not tracking.wait(0.01)
    assert tracker.logged == []
    assert untracked(store) == [2, 3]
    answers.set()
    assert tracking.wait(60)
    assert [record["step"] for record in tracker.logged] == [0, 1]
    check_store(store.path)


def test_a_save_that_failed_is_not_logged(tracker: StandIn, store: Store) -> None:
    tracking = track(store)
    store.save(state(1), step=1)
    with pytest.raises(CannotStore):
        store.save({"w": object()}, step=2)
    pending = store.save_async(state(3), step=1)
    with pytest.raises(StepExists):
        pending.result()

    assert tracking.wait(60)
    assert [record["step"] for record in tracker.logged] == [1]
    assert untracked(store) == []


def test_without_an_active_run_there_is_a_warning_and_a_later_run_is_found(
    tracker: StandIn, store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = StandIn(tracker.kind, "run-2")
    tracker.install(monkeypatch.setitem)
    tracking = track(store)
    store.save(state(1), step=1)
    assert tracking.wait(60)
    tracker.finish()
    without = store.save(state(2), step=2)
    later.install(monkeypatch.setitem)
    store.save(state(3), step=3)
    assert tracking.wait(60)

    assert "tracked_by" not in without.metadata
    assert "no run of a tracker is active, so checkpoints are not logged" in caplog.text
    assert [record["step"] for record in tracker.logged] == [1]
    assert [record["step"] for record in later.logged] == [3]
    assert store.info(3).metadata["tracked_by"][0]["run"] == "run-2"


def test_a_run_that_is_given_is_used_and_another_thread_uses_the_run_of_the_first(
    tracker: StandIn, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StandIn("trackio" if tracker.kind != "trackio" else "wandb", "given")
    other.install(monkeypatch.setitem)
    run = other.module.run if other.kind == "wandb" else other.module.context_vars.current_run.get()
    tracking = track(store, run)
    store.save(state(1), step=1)
    assert track(store) is tracking
    assert tracking.wait(60)
    other.finish()
    store.save(state(2), step=2)
    thread = threading.Thread(target=store.save, args=(state(3),), kwargs={"step": 3})
    thread.start()
    thread.join()
    assert tracking.wait(60)

    assert [record["step"] for record in other.logged] == [1]
    assert [record["step"] for record in tracker.logged] == [2, 3]
    with pytest.raises(BadInput, match="run must be a run of wandb, mlflow, trackio, got int"):
        track(store, 7)


def test_metadata_of_the_caller_is_kept_and_a_disabled_tracker_says_nothing(
    tracker: StandIn, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = track(store)
    store.save(state(0), step=0)
    mine = store.save(state(1), step=1, metadata={"tracked_by": "me"})
    assert tracking.wait(60)
    assert mine.metadata["tracked_by"] == "me"
    assert [record["step"] for record in tracker.logged] == [0]
    assert untracked(store) == [1]
    assert "the metadata of the caller has 'tracked_by', which names the runs" in caplog.text
    if tracker.kind == "wandb":
        caplog.clear()
        tracker.module.run.disabled = True
        assert "tracked_by" not in store.save(state(2), step=2).metadata
        assert caplog.text == ""


def test_rank_0_logs_whichever_rank_publishes(tracker: StandIn, store: Store) -> None:
    tracking = track(store)
    handles = [store, Store.open(store.path), Store.open(store.path)]
    track(handles[2])  # a rank that has a tracker of its own
    for step in range(4):
        saves = []
        for rank in (0, 1, 2) if step % 2 else (2, 1, 0):
            arguments = {"step": step, "ranks": Ranks(rank, 3, f"try-{step}", timeout_s=120)}
            saves.append(threading.Thread(target=handles[rank].save, args=(state(rank),), kwargs=arguments))
            saves[-1].start()
        for save in saves:
            save.join()
    assert tracking.wait(60)

    assert [len(info.metadata.get("tracked_by", ())) for info in store.checkpoints()] == [1] * 4
    assert [record["step"] for record in tracker.logged] == [0, 1, 2, 3]
    Store.open(store.path).gc()  # removes the parts
    check_store(store.path)


_PROGRAM = """
import os, sys, threading
import numpy as np
from ckstore import Store
from ckstore.integrations import trackers
from tests.support.tracker_standins import StandIn

tracker = StandIn(sys.argv[2])
tracker.install(dict.__setitem__)
store = Store.open(sys.argv[1])
tracking = trackers.track(store)
store.save({"w": np.ones(9)}, step=1)
assert tracking.wait(60)
child = os.fork()
if not child:
    store.save({"w": np.zeros(9)}, step=2)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert [record["step"] for record in tracker.logged] == [1]
trackers._AT_EXIT_S = 0.01
tracker.act = threading.Event().wait
store.save({"w": np.full(9, 2.0)}, step=3)
"""


def test_a_fork_is_not_tracked_and_a_tracker_that_hangs_lets_the_process_end(
    tracker: StandIn, store: Store, warm: Path
) -> None:
    words = [str(warm / "python"), "-c", _PROGRAM, str(store.path), tracker.kind]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stderr
    assert "is a fork of process" in done.stderr
    assert "the tracker has not answered within" in done.stderr
    assert [info.step for info in store.checkpoints() if "tracked_by" in info.metadata] == [1, 3]
    assert untracked(store) == [3]
    check_store(store.path)


def test_a_thread_that_cannot_start_fails_no_save_and_the_next_one_logs_both(
    tracker: StandIn, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking = trackers.track(store)
    begin = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "ckstore-trackers":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        store.save(state(1), step=1)
        store.save_async(state(2), step=2).result(60)
        assert not tracking.wait(0.01)
        assert any("can't start new thread" in text for text in store.warnings)
    store.save(state(3), step=3)

    assert tracking.wait(60)
    assert [record["step"] for record in tracker.logged] == [1, 2, 3]
    assert not untracked(store)
    wait_for(lambda: "ckstore-trackers" not in {thread.name for thread in threading.enumerate()}, "the thread to end")
    check_store(store.path)


@pytest.mark.parametrize(
    "value", [None, "x", [], [1], [{}], [{"kind": "wandb"}], [{"kind": "w", "run": 1}], {"kind": 1}]
)
def test_metadata_of_any_form_is_shown(value: object, store: Store) -> None:
    store.save(state(1), step=1, metadata={"tracked_by": value})

    for words in (["log"], ["show"]):
        result = CliRunner().invoke(app, ["--store", str(store.path), *words])
        assert result.exit_code == 0, result.output
        assert "tracked by" not in result.output
