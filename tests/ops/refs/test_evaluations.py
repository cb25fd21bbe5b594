"""`follow(lacking=)` gives each checkpoint to one evaluator, which may be killed; nothing drops it meanwhile."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ckstore import (
    BadInput,
    CheckpointInfo,
    CkstoreWarning,
    InsufficientSpace,
    InUse,
    ReadOnlyStore,
    RetentionPolicy,
    Store,
    UnsafePlace,
)
from ckstore.fs import lock_files
from ckstore.objects.documents import evaluations
from ckstore.ops.free import drop as drop_module
from ckstore.ops.refs import evaluations as evaluations_module
from ckstore.ops.refs import follow as follow_module
from ckstore.ops.refs.evaluations import check_not_evaluated
from ckstore.ops.refs.follow import Follower
from ckstore.ops.refs.protection import held
from tests.support.crashing import run_and_kill
from tests.support.plans import plan_of
from tests.support.requirements import CRASH_FULL

FORK = multiprocessing.get_context("fork")
KILLED = -signal.SIGKILL
WAIT_S = 60.0


def save(store: Store, step: int, run: str = "gpt") -> CheckpointInfo:
    return store.save({"w": np.full(10, step)}, step, run)


def lacking(store: Store, metric: Any = "bleu", **given: Any) -> Any:
    return store.follow("gpt", lacking=metric, timeout_s=0, **given)


def steps(store: Store, metric: Any = "bleu", *, annotated: bool = True, **given: Any) -> list[int]:
    """Evaluate all that is given, and return the steps."""
    found = []
    with lacking(store, metric, **given) as follower:
        for info in follower:
            found.append(info.step)
            if annotated:
                store.annotate(info, metrics=dict.fromkeys([metric] if isinstance(metric, str) else metric, 1.0))
    return found


def records(store: Store) -> list[str]:
    """Return the ends of the names of all records."""
    folder = store.path / "locks"
    names = os.listdir(folder) if folder.exists() else []
    return sorted(name.split(".", 2)[2] for name in names if name.startswith("evaluation-"))


@contextmanager
def evaluating(store: Store, metric: str = "bleu") -> Iterator[subprocess.Popen[str]]:
    """Have another process evaluate the next checkpoint for as long as the block goes on, or until it is killed."""
    code = f"""
import sys
from ckstore import Store
follower = Store.open(sys.argv[1]).follow("gpt", lacking={metric!r})
print(next(follower).step, flush=True)
sys.stdin.read()
follower.close()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.stdin.close()


def test_each_checkpoint_without_the_metric_is_given_once_and_across_restarts(store: Store) -> None:
    for step in range(4):
        save(store, step)
    store.annotate(1, metrics={"bleu": 0.5})
    store.save({"w": np.zeros(3)}, 4, "gpt", metrics={"bleu": float("nan")})

    assert steps(store) == [0, 2, 3]
    save(store, 5)
    assert steps(Store.open(store.path)) == [5]
    assert steps(store) == []
    assert steps(store, "rouge", newest_first=True) == [5, 4, 3, 2, 1, 0]
    assert records(store) == []


def test_what_is_saved_later_is_given_too_and_the_newest_first_if_asked_for(store: Store) -> None:
    save(store, 0)
    with lacking(store, newest_first=True) as follower:
        store.annotate(next(follower), metrics={"bleu": 1})
        for step in (1, 2, 3):
            save(store, step)
        info = next(follower)
        assert info.step == 3
        save(store, 4)
        store.annotate(info, metrics={"bleu": 1})
        assert next(follower).step == 4


def test_two_evaluators_of_one_process_never_have_the_same_one(store: Store) -> None:
    for step in range(3):
        save(store, step)
    with lacking(store) as one, lacking(Store.open(store.path)) as other:
        assert [next(one).step, next(other).step, next(one).step] == [0, 1, 2]
        assert [info.step for info in other] == [0]  # the first one has it no more, and has not evaluated it


def test_of_two_metrics_one_that_lacks_either_is_given_and_each_is_evaluated_by_one(store: Store) -> None:
    save(store, 0)
    save(store, 1)
    store.annotate(0, metrics={"bleu": 1})
    store.annotate(1, metrics={"rouge": 1})
    with lacking(store, ("bleu", "rouge")) as both:
        assert next(both).step == 0
        assert steps(store, "rouge", annotated=False) == []  # of 0 it is being evaluated, and 1 has it
        assert steps(store, "bleu") == [1]  # the metric that only the other one is free of
        store.annotate(0, metrics={"rouge": 1})
        assert list(both) == []
    save(store, 2)
    assert steps(store, "bleu", annotated=False) == [2]
    with lacking(store, ["bleu", "rouge"]) as both:
        info = next(both)
        store.annotate(info, metrics={"bleu": 1})
        assert steps(store, "rouge") == []
        assert list(both) == []
    assert steps(store, "rouge") == [2]


POINTS = ("given", "loaded", "annotated")


def _evaluate(path: Path, log: Path, kill: Callable[[str, int], bool], timeout_s: float, attempts: int | None) -> None:
    """Evaluate all that is given, note each evaluation, and die where `kill` says so."""
    store = Store.open(path)
    warnings.filterwarnings("ignore", "dropped before they had bleu")  # in a process of its own

    def reached(point: str, step: int) -> None:
        with open(log, "a", encoding="ascii") as file:
            file.write(f"{point} {step} {os.getpid()}\n")
        if kill(point, step):
            os.kill(os.getpid(), signal.SIGKILL)

    for info in store.follow("gpt", lacking="bleu", timeout_s=timeout_s, attempts=attempts):
        reached("given", info.step)
        found = store.load(info)
        reached("loaded", info.step)
        store.annotate(info, metrics={"bleu": float(found["w"][0])})
        reached("annotated", info.step)


def never(_point: str, _step: int) -> bool:
    return False


def dies_at(step: int, point: str) -> Callable[[str, int], bool]:
    return lambda reached, at: (reached, at) == (point, step)


def evaluator(
    store: Store,
    log: Path,
    kill: Callable[[str, int], bool] = never,
    timeout_s: float = 0,
    attempts: int | None = 3,
) -> Any:
    process = FORK.Process(target=_evaluate, args=(store.path, log, kill, timeout_s, attempts))
    process.start()
    return process


def noted(log: Path, point: str) -> Counter[int]:
    lines = [line.split() for line in log.read_text("ascii").splitlines()]
    return Counter(int(step) for name, step, _ in lines if name == point)


@pytest.mark.parametrize("point", POINTS)
def test_what_a_killed_evaluator_had_goes_to_another_one_unless_it_has_the_metric(
    store: Store, tmp_path: Path, point: str
) -> None:
    """Retention goes on meanwhile; it waits for an evaluator, and no longer once that one is dead."""
    log = tmp_path / "log"
    for step in range(3):
        save(store, step)
    process = evaluator(store, log, kill=dies_at(1, point))
    process.join(WAIT_S)
    assert process.exitcode == KILLED
    assert records(store) == ([] if point == "annotated" else ["1"])

    other = evaluator(store, log)
    other.join(WAIT_S)

    assert other.exitcode == 0
    again = {1: 2} if point != "annotated" else {}
    assert noted(log, "given") == {0: 1, 1: 1, 2: 1} | again
    assert noted(log, "annotated") == {0: 1, 1: 1, 2: 1}
    assert {info.step: info.metrics["bleu"] for info in store.checkpoints("gpt")} == {0: 0, 1: 1, 2: 2}
    assert records(store) == []


@pytest.mark.parametrize("before", [True, False])
def test_an_evaluator_that_is_killed_at_any_call_leaves_its_checkpoint_to_another_one(
    store: Store, before: bool
) -> None:
    """Two checkpoints: one evaluation fails, and the other one succeeds, with a kill at each change of the disk."""

    def work() -> None:
        with Store.open(store.path) as own, lacking(own, metric, attempts=None) as follower:
            next(follower)
            own.annotate(next(follower), metrics={metric: 1})
            assert list(follower) == []

    save(store, 0)
    save(store, 1)
    for at in range(1, 200):
        metric = f"metric {at}"
        died = run_and_kill(work, at=at, before=before, may_fail=False)
        left = {info.step for info in store.checkpoints("gpt") if metric not in info.metrics}
        assert {*steps(Store.open(store.path), metric, attempts=None)} == left
        assert {0} <= left <= {0, 1}
        if not died:
            assert left == {0}
            break
    else:
        pytest.fail("it was killed each time")
    store.gc(now=True)
    assert [path.name for path in (store.path / "locks").iterdir() if path.name.startswith(".new-")] == []


def test_a_rule_waits_for_an_evaluation_and_not_for_a_dead_evaluator(store: Store) -> None:
    save(store, 0)
    with evaluating(store) as process:
        store.config.retention = RetentionPolicy(keep_last=1)
        save(store, 1)
        save(store, 2)
        assert [info.step for info in store.checkpoints("gpt")] == [0, 2]
        (kept,) = [entry for entry in plan_of(store).kept if entry.step == 0]
        assert f"it is being evaluated for bleu, by PID {process.pid} on " in str(kept)
        with pytest.raises(InUse, match=rf"gpt@0: it is being evaluated for bleu, by PID {process.pid} on"):
            store.delete("gpt@0")
        with pytest.raises(InUse, match="evaluated"):
            store.delete("gpt@0", dry_run=True)
        with pytest.raises(InUse, match="evaluated"):
            store.rename_run("gpt", "bert")
        process.kill()
        process.wait()
        save(store, 3)
        assert [info.step for info in store.checkpoints("gpt")] == [3]


def test_after_its_patience_a_rule_drops_what_is_being_evaluated_and_says_so(store: Store) -> None:
    save(store, 0)
    store.config.retention = RetentionPolicy(keep_last=1)
    with lacking(store) as follower:
        info = next(follower)
        store.config.evaluation_patience_s = 0
        assert list(lacking(Store.open(store.path))) == []  # its evaluator lives
        said = "".join(save(store, 1).warnings)
        assert "gpt@0 is dropped while it is being evaluated: its evaluation takes longer than 0 s" in said
        assert [info.step for info in store.checkpoints("gpt")] == [1]
        (event,) = [event for event in store.events() if event.event == "dropped"]
        assert "its evaluation takes longer than 0 s (evaluation_patience_s): for bleu, by PID" in event.why
        with pytest.raises(LookupError):
            store.annotate(info, metrics={"bleu": 1})


def test_what_was_dropped_before_it_was_evaluated_is_named_once(store: Store) -> None:
    save(store, 0)
    save(store, 1)
    store.config.retention = RetentionPolicy(keep_last=1)
    with lacking(store) as follower:
        info = next(follower)
        for step in (2, 3, 4):  # 1 was seen by the follower, 2 and 3 were not
            save(store, step)
        save(store, 5, "bert")
        save(store, 6, "bert")
        store.annotate(info, metrics={"bleu": 1})
        with pytest.warns(CkstoreWarning, match=r"dropped before they had bleu: gpt@1, gpt@2, gpt@3. Keep more"):
            assert next(follower).step == 4
        store.annotate("gpt@4", metrics={"bleu": 1})
        save(store, 7)
        assert [info.step for info in follower] == [7]  # and no other warning: 0 and 4 were evaluated
    (first, *_) = [event for event in store.events() if event.event == "dropped" and event.step == 1]
    assert first.metrics == ()
    (last,) = [event for event in store.events() if event.event == "dropped" and event.step == 4]
    assert last.metrics == ("bleu",)


def test_what_is_dropped_but_not_lost_for_an_evaluation_is_not_named(store: Store) -> None:
    for step in range(4):
        save(store, step)
    store.delete("gpt@3")  # before the follower began
    save(store, 4)
    with lacking(store, after="gpt@1") as follower:
        info = next(follower)
        store.delete("gpt@0")  # not asked for
        save(store, 5)
        store.annotate("gpt@5", metrics={"bleu": 1})  # by another evaluator
        store.delete("gpt@5")
        store.save({"w": np.zeros(7)}, 4, "gpt", if_exists="replace")
        store.annotate(info, metrics={"bleu": 1})
        store.delete(info)  # evaluated
        assert next(follower).step == 4
    with lacking(store) as follower:
        store.rename_run("gpt", "bert")
        assert [*follower] == []
    assert [event.why for event in store.events() if event.event == "dropped"][-1].startswith("renamed to bert@")


def test_evaluations_go_on_if_the_journal_cannot_be_read(store: Store) -> None:
    save(store, 0)
    save(store, 1)
    with lacking(store) as follower:
        next(follower)
        (store.path / "events.jsonl").unlink()
        (store.path / "events.jsonl").mkdir()
        with pytest.warns(CkstoreWarning, match="deleted before their evaluation cannot be named"):
            assert next(follower).step == 1
        assert [*follower] == []


def test_a_user_deletes_it_after_the_patience(store: Store) -> None:
    save(store, 0)
    save(store, 1)
    with lacking(store) as follower:
        next(follower)
        store.config.evaluation_patience_s = 0
        store.delete("gpt@0")
    assert [info.step for info in store.checkpoints("gpt")] == [1]


def test_one_that_is_replaced_stays_until_its_evaluation_is_over(store: Store) -> None:
    old = save(store, 0)
    with lacking(store) as follower:
        info = next(follower)
        new = store.save({"w": np.zeros(7)}, 0, "gpt", if_exists="replace")
        assert "is being evaluated" in "".join(new.warnings)
        store.gc(now=True)
        assert store.load(info)["w"].shape == (10,)
        store.annotate(info, metrics={"bleu": 1})
        assert next(follower).id == new.id
        store.annotate(new, metrics={"bleu": 1})
    store.gc(now=True)
    assert [info.id for info in store.checkpoints("gpt", superseded=True)] == [new.id]
    assert old.id != new.id


def test_a_gc_plans_with_what_is_being_evaluated(store: Store) -> None:
    save(store, 0)
    with lacking(store) as follower:
        next(follower)
        store.save({"w": np.zeros(7)}, 0, "gpt", if_exists="replace")
        planned = store.gc(now=True, dry_run=True)
        done = store.gc(now=True)
    assert (planned.freed_bytes, done.freed_bytes, done.differences) == (0, 0, ())
    assert store.gc(now=True).freed_bytes > 0


def test_evaluations_that_end_without_the_metric_are_bounded(store: Store) -> None:
    save(store, 0)
    save(store, 1)
    for _ in range(3):
        assert steps(store, annotated=False) == [0, 1]
    with pytest.warns(CkstoreWarning, match=r"skipped .*: gpt@0 \(bleu, 3\), gpt@1 \(bleu, 3\). attempts=None"):
        assert steps(store) == []
    assert steps(store, "rouge") == [0, 1]
    assert steps(store, attempts=4, annotated=False) == [0, 1]
    assert records(store) == ["3.over", "3.over", "4.over", "4.over"]  # no file for each of a thousand tries
    assert steps(store, attempts=None) == [0, 1]
    assert records(store) == []


def test_an_evaluator_that_kills_its_process_is_left_out_as_well(store: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    save(store, 0)
    save(store, 1)
    for _ in range(2):
        process = evaluator(store, log, kill=dies_at(0, "loaded"), attempts=2)
        process.join(WAIT_S)
        assert process.exitcode == KILLED
    with pytest.warns(CkstoreWarning, match=r"gpt@0 \(bleu, 2\)"):
        assert steps(store, attempts=2) == [1]


def raise_while_evaluating(store: Store, kind: type[BaseException]) -> None:
    with lacking(store) as follower:
        next(follower)
        raise kind


def test_a_follower_that_is_closed_gives_back_what_it_did_not_evaluate(store: Store) -> None:
    save(store, 0)
    follower = lacking(store)
    next(follower)
    follower.close()
    assert records(store) == []
    with pytest.raises(KeyboardInterrupt):
        raise_while_evaluating(store, KeyboardInterrupt)
    assert records(store) == []
    with lacking(store) as follower:
        next(follower)
    assert records(store) == []
    with pytest.raises(RuntimeError):
        raise_while_evaluating(store, RuntimeError)
    assert records(store) == ["1.over"]
    with lacking(store) as follower:
        next(follower)
    assert records(store) == ["1.over"]  # its count stays
    for _ in lacking(store):
        break
    assert records(store) == ["1.over", "2.over"]


def test_a_forked_child_ends_no_evaluation_of_its_parent_and_does_not_outlive_it(store: Store) -> None:
    save(store, 0)
    follower = lacking(store)
    next(follower)
    child = FORK.Process(target=follower.close)
    child.start()
    child.join(WAIT_S)
    assert child.exitcode == 0
    assert records(store) == ["1"]
    assert list(lacking(Store.open(store.path))) == []

    sleeper = FORK.Process(target=time.sleep, args=(WAIT_S,))
    sleeper.start()
    try:
        follower.close()
        with lacking(store) as other:
            assert next(other).step == 0
    finally:
        sleeper.kill()
        sleeper.join()


def test_a_metric_from_elsewhere_ends_the_evaluation(store: Store) -> None:
    save(store, 0)
    save(store, 1)
    with lacking(store) as follower:
        next(follower)
        Store.open(store.path).annotate(0, metrics={"bleu": 1})
        store.delete("gpt@0")
        assert next(follower).step == 1
    assert records(store) == []


def test_gc_removes_records_of_checkpoints_that_are_gone_alone(store: Store) -> None:
    for step in range(3):
        save(store, step)
    assert steps(store, annotated=False) == [0, 1, 2]
    store.delete("gpt@0", now=True)
    with lacking(store) as follower:
        next(follower)
        store.config.evaluation_patience_s = 0
        store.delete("gpt@1", now=True)
        store.gc(now=True)
        assert records(store) == ["1.over", "2"]  # of gpt@2, and of gpt@1, which is still being evaluated
    store.gc(now=True)
    assert records(store) == ["1.over"]


def elsewhere(work: Callable[[], object]) -> None:
    """Do work in another thread: one thread is in one act of a store at a time."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)


def test_an_evaluation_that_others_finish_or_fail_meanwhile_is_not_begun_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the records and the new record the other evaluator does all of its work."""
    save(store, 0)
    save(store, 1)
    begin = evaluations.begin

    def late(layout: Any, *given: Any) -> Any:
        monkeypatch.setattr(evaluations, "begin", begin)
        elsewhere(lambda: steps(other))
        return begin(layout, *given)

    other = Store.open(store.path)
    with lacking(store) as follower:
        monkeypatch.setattr(evaluations, "begin", late)
        assert list(follower) == []
    assert records(store) == []

    save(store, 2)
    store.delete(0)
    store.delete(1)
    save(store, 3)

    def late_again(layout: Any, *given: Any) -> Any:
        monkeypatch.setattr(evaluations, "begin", begin)
        elsewhere(lambda: steps(other, annotated=False))
        return begin(layout, *given)

    with lacking(store, attempts=1) as follower:
        monkeypatch.setattr(evaluations, "begin", late_again)
        assert list(follower) == []
    assert records(store) == ["1.over", "1.over"]
    with pytest.warns(CkstoreWarning, match=r"gpt@2 \(bleu, 1\), gpt@3 \(bleu, 1\)"):
        assert steps(store, attempts=1) == []


def test_a_checkpoint_that_is_being_dropped_is_not_given(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that drops it has asked for evaluations right before one begins."""
    save(store, 0)
    save(store, 1)
    given: list[int] = []
    thread = threading.Thread(target=lambda: given.extend(info.step for info in lacking(Store.open(store.path))))
    check = check_not_evaluated

    def too_early(*words: Any) -> None:
        check(*words)
        thread.start()
        deadline = time.monotonic() + WAIT_S
        while records(store) != ["1"] and time.monotonic() < deadline:
            time.sleep(0.001)
        thread.join(0.5)  # it would be given by now if the evaluator did not wait

    monkeypatch.setattr(drop_module, "check_not_evaluated", too_early)
    with pytest.warns(CkstoreWarning, match="dropped before they had bleu: gpt@0. Keep"):  # noqa: PT031 - both may
        store.delete("gpt@0")
        thread.join(WAIT_S)

    assert given == [1]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Store]:
    """A store that other hosts may have, with two checkpoints."""
    made = Store.init(tmp_path / "shared", catalog_path=tmp_path / "catalog.db")
    save(made, 0)
    save(made, 1)
    yield made
    made.close()


def of_another_host(store: Store, monkeypatch: pytest.MonkeyPatch) -> Follower:
    """Let the record of gpt@0 be one of another host, whose lock is not seen here."""
    monkeypatch.setattr(evaluations, "_boot", lambda: "another start of another machine")
    follower: Follower = lacking(store)
    assert next(follower).step == 0
    monkeypatch.undo()
    monkeypatch.setattr(lock_files, "is_locked", lambda _: False)
    return follower


def test_the_evaluation_of_another_host_is_believed_for_the_patience(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with of_another_host(shared, monkeypatch):
        assert steps(shared, annotated=False) == [1]
        shared.config.retention = RetentionPolicy(keep_last=1)
        assert [entry.step for entry in plan_of(shared).dropped] == []
        shared.config.evaluation_patience_s = 0
        assert [entry.step for entry in plan_of(shared).dropped] == [0]
        assert steps(shared) == [0, 1]


def test_where_locks_reach_all_hosts_a_free_one_tells_that_an_evaluator_of_another_host_ended(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reach, given in (((False, True), [1]), ((True, False), []), ((True, True), [0])):
        monkeypatch.setattr(evaluations, "_locks_reach_hosts", lambda _, reach=reach: reach[0])
        monkeypatch.setattr(evaluations, "_boot", lambda: "another start of another machine")
        with lacking(shared) as follower:
            next(follower)
            monkeypatch.undo()
            monkeypatch.setattr(lock_files, "is_locked", lambda _: False)
            monkeypatch.setattr(evaluations, "_locks_reach_hosts", lambda _, reach=reach: reach[1])
            assert steps(shared) == given
            monkeypatch.undo()


def test_another_host_that_says_that_it_ended_is_not_waited_for(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "_boot", lambda: "another start of another machine")
    assert steps(shared, annotated=False) == [0, 1]
    monkeypatch.undo()
    assert records(shared) == ["1.over", "1.over"]
    assert steps(shared) == [0, 1]


def test_on_a_local_disk_a_record_of_before_a_restart_of_the_machine_is_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 0)
    with of_another_host(store, monkeypatch):
        assert steps(store) == [0]


def test_it_is_refused_where_it_cannot_be_kept(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 0)
    with pytest.raises(ReadOnlyStore):
        Store.open(store.path, readonly=True).follow("gpt", lacking="bleu")
    with pytest.raises(BadInput, match="needs a store on a filesystem"):
        store.follow("gpt", lacking="bleu", remote=tmp_path / "remote")
    names: list[Any] = [3, [], [3], [["bleu"]], "\ud83d\udc4d", {}]
    for wrong in names:
        with pytest.raises(BadInput):
            store.follow("gpt", lacking=wrong)
    counts: list[Any] = [0, True, "3"]
    for attempts in counts:
        with pytest.raises(BadInput, match="attempts must be"):
            store.follow("gpt", lacking="bleu", attempts=attempts)
    with pytest.raises(BadInput, match="newest_first"):
        store.follow("gpt", newest_first=True)

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    with lacking(store) as follower, monkeypatch.context() as patch:
        patch.setattr(lock_files, "fcntl", SimpleNamespace(**vars(fcntl) | {"flock": no_locks}))
        with pytest.raises(UnsafePlace, match="cannot be locked"):
            next(follower)


def test_a_run_that_another_process_has_locked_is_waited_for_and_not_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 0)
    monkeypatch.setattr(follow_module, "_LOOK_S", 0.001)
    refused, times = 0, 5

    def refuse(*given: Any, **more: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused <= times:
            raise InUse("the run is locked by another process")
        return held(*given, **more)

    monkeypatch.setattr(evaluations_module, "held", refuse)
    with store.follow("gpt", lacking="bleu", timeout_s=WAIT_S) as follower:
        assert next(follower).step == 0
        assert (refused, records(store)) == (6, ["1"])
    times = 1000
    with store.follow("gpt", lacking="bleu") as follower, pytest.raises(InUse, match="locked by another process"):
        next(follower)
    assert records(store) == []  # it was never tried


def test_an_evaluation_that_cannot_begin_does_not_count_as_an_attempt(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 0)
    begin = evaluations.begin

    def full(layout: Any, id: str, metric: str, number: int) -> Any:
        if metric == "rouge":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return begin(layout, id, metric, number)

    with monkeypatch.context() as patch:
        patch.setattr(evaluations, "begin", full)
        with pytest.raises(InsufficientSpace):
            steps(store, ("bleu", "rouge"), attempts=1)
    assert records(store) == []
    assert steps(store, ("bleu", "rouge"), attempts=1) == [0]


def test_what_is_no_record_of_an_evaluation_keeps_nothing(store: Store) -> None:
    """Names that another user may put there; a pipe must not be waited for, and a huge file not read."""
    info = save(store, 0)
    save(store, 1)
    save(store, 2)
    folder = store.path / "locks"
    folder.mkdir(exist_ok=True)
    name = f"evaluation-{info.id}.d99c6c196058f246"
    os.mkfifo(folder / f"{name}.1")
    (folder / f"{name}.2").mkdir()
    (folder / f"{name}.3").symlink_to(store.path)
    for other in (
        f"{name}.0",
        f"{name}.1.late",
        f"{name}.99999999999",
        "evaluation-x.d99c6c196058f246.1",
        "evaluation-",
    ):
        (folder / other).touch()
    store.delete("gpt@0")
    assert steps(store) == [1, 2]
    shutil.rmtree(folder)

    save(store, 3)
    with lacking(store) as follower:
        next(follower)
        (record,) = folder.glob("evaluation-*")
        os.truncate(record, 2**30)  # unreadable, and locked: it goes on
        with pytest.raises(InUse, match="gpt@3: it is being evaluated by another process"):
            store.delete("gpt@3")
    assert records(store) == []


def test_one_whose_annotations_are_damaged_is_named_and_not_given(store: Store) -> None:
    info = save(store, 0)
    save(store, 1)
    store.annotate(0, metrics={"loss": 1})
    (found,) = (store.path / "checkpoints" / "gpt").glob("0.*/annotations.json")
    found.write_bytes(found.read_bytes()[:-9])
    with pytest.warns(CkstoreWarning, match=r"annotations of gpt@0.* not evaluated until"):
        assert steps(store) == [1]
    found.unlink()
    assert steps(store) == [info.step]


@pytest.mark.parametrize("seed", range(20 if CRASH_FULL else 2))
def test_every_checkpoint_is_evaluated_whatever_is_killed(
    store: Store, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluators come and go, some killed at random points, while a training saves and a rule drops."""
    monkeypatch.setattr(follow_module, "_LOOK_S", 0.02)
    chance = random.Random(seed)
    log = tmp_path / "log"
    store.config.retention = RetentionPolicy(keep_last=4)
    saved = 30
    crews = []
    for step in range(saved):
        save(store, step)
        if step % 3 == 0:
            victim = step - chance.randrange(4), chance.choice(POINTS)
            crews.append(
                evaluator(store, log, kill=dies_at(*victim) if chance.random() < 0.5 else never, attempts=None)
            )
        time.sleep(chance.random() * 0.02)
    last = evaluator(store, log, attempts=None)
    for process in (*crews, last):
        process.join(WAIT_S)
        assert process.exitcode in (0, KILLED)
    killed = sum(process.exitcode == KILLED for process in crews)
    # One evaluation may have gone on when the last of them looked.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "dropped before they had bleu")
        steps(store)

    given, done = noted(log, "given"), noted(log, "annotated")
    assert all("bleu" in info.metrics for info in store.checkpoints("gpt"))
    assert max(done.values()) == 1
    assert sum(count - 1 for count in given.values()) <= killed
    shutil.rmtree(store.path / "locks")
    store.gc(now=True)
