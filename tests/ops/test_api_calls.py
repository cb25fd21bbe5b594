"""A thread is in one act of a store at a time: what a handler or a callback begins in the middle is refused at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store, StoreConfig
from ckstore.errors import InUse
from ckstore.fs import locks
from ckstore.objects import publish
from tests.support.meanwhile import elsewhere
from tests.support.requirements import representatives
from tests.support.stores import check_store

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 240.0

STATE = {"w": np.arange(300_000, dtype=np.float32)}

SETTINGS = [name for name, member in vars(StoreConfig).items() if isinstance(member, property)]


def setting(name: str, store: Store) -> object:
    return getattr(store.config, name)


def no_setting(name: str, store: Store) -> None:
    delattr(store.config, name)


NESTED: dict[str, Callable[[Store], object]] = {
    "save": lambda store: store.save({"x": 1}, run="inner"),
    "save_async": lambda store: store.save_async({"x": 1}, run="inner"),
    "wait": lambda store: store.background.wait(),
    "flush": lambda store: store.background.flush(1),
    "staging_bytes": lambda store: store.background.staging_bytes({"x": 1}),
    "prewarm": lambda store: store.background.prewarm(),
    "write_metrics": lambda store: store.write_metrics(store.path.parent / "metrics"),
    "commit": lambda store: store.commit(__file__, step=9),
    "load": lambda store: store.load(1),
    "load_into": lambda store: store.load_into({}, 1),
    "info": lambda store: store.info(1),
    "latest": lambda store: store.latest(),
    "checkpoints": lambda store: store.checkpoints(),
    "runs": lambda store: store.runs(),
    "follow": lambda store: next(store.follow(timeout_s=0)),
    "publish": lambda store: next(store.publish(None, store.path.parent / "published", timeout_s=0)),
    "open_checkpoint": lambda store: store.open_checkpoint(1),
    "delete": lambda store: store.delete(1),
    "verify": lambda store: store.verify(),
    "reindex": lambda store: store.reindex(),
    "migrate": lambda store: store.migrate(),
    "diff": lambda store: store.diff(1, 1),
    "du": lambda store: store.du(),
    "why": lambda store: store.why("abcdef"),
    "gc": lambda store: store.gc(),
    "savers": lambda store: store.savers(),
    "doctor": lambda store: store.doctor(),
    "tag": lambda store: store.tag("best", 1),
    "untag": lambda store: store.untag("best"),
    "tags": lambda store: store.tags(),
    "pin": lambda store: store.pin(1, "kept"),
    "unpin": lambda store: store.unpin(1),
    "pins": lambda store: store.pins(),
    "annotate": lambda store: store.annotate(1, note="a note"),
    **{f"config.{name}": partial(setting, name) for name in SETTINGS},
    **{f"del config.{name}": partial(no_setting, name) for name in SETTINGS},
    "compact": lambda store: store.compact(),
    "evict": lambda store: store.evict(1),
    "push": lambda store: store.push(1),
    "pull": lambda store: store.pull(1),
    "mirror_status": lambda store: store.mirror_status(),
    "undo": lambda store: store.undo(1),
    "touch": lambda store: store.touch(),
    "rename_run": lambda store: store.rename_run("main", "other"),
    "undoable": lambda store: store.undoable(),
    "best": lambda store: store.best("loss"),
    "events": lambda store: store.events(),
    "metrics": lambda store: store.metrics(),
    "report": lambda store: store.report(),
    "prune": lambda store: store.prune(RetentionPolicy(keep_last=1)),
    "checkout": lambda store: store.checkout(1, "out"),
    "export": lambda store: store.export(1, "out.pt", format="torch"),
    "export_safetensors": lambda store: store.export_safetensors(1, "out"),
    "opening": lambda store: Store(store.path),
    "opening for reading": lambda store: Store(store.path, readonly=True),
    "init": lambda store: Store.init(store.path),
    "open_or_init": lambda store: Store.open_or_init(store.path),
    "another handle": lambda store: _OTHER[0].save({"x": 1}, run="inner"),
}
_OTHER: list[Store] = []


def interrupted(patch: pytest.MonkeyPatch, handler: Callable[[], object]) -> list[BaseException | None]:
    """Have saves call `handler` before they publish, in their own thread; return what each call of it will raise."""
    raised: list[BaseException | None] = []
    original: Callable[..., Any] = publish.publish

    def publishing(*args: Any, **kwargs: Any) -> Any:
        raised.append(None)
        try:
            handler()
        except BaseException as error:
            raised[-1] = error
        return original(*args, **kwargs)

    patch.setattr(publish, "publish", publishing)
    return raised


@pytest.mark.parametrize("nested", NESTED)
def test_every_act_in_the_middle_of_a_save_is_refused_at_once(
    store: Store, nested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(STATE, step=1)
    _OTHER[:] = [Store(store.path)]
    first = iter([NESTED[nested]])
    raised = interrupted(monkeypatch, lambda: next(first, str)(store))

    info = store.save({**STATE, "more": 1}, step=2)

    error = raised[0]
    assert isinstance(error, InUse)
    assert "a save of main@2 is running in this same thread" in error.message
    assert "set a flag" in error.hint
    assert info.step == 2
    assert store.latest() == store.info(2)


def test_every_public_method_is_an_act() -> None:
    # Nothing, or the acts of opening and making, or not about a store.
    without = {"close", "clone", "config", "init", "open", "open_or_init", "remotes", "verify_export"}
    methods = {name: method for name, method in vars(Store).items() if not name.startswith("_")}
    quick = {"warnings", "settings"}

    for name, method in methods.items():
        function = method.fget if isinstance(method, property) else method
        if name not in without | quick:
            assert getattr(function, "__wrapped__", None) is not None, name
    assert NESTED.keys() >= methods.keys() - without - quick


def test_acts_of_another_thread_and_of_another_store_go_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(STATE, step=1)
    other = Store.init(store.path.parent / "other")
    inner = iter([True])

    def handler() -> None:
        if next(inner, False):
            elsewhere(lambda: store.save({"x": 1}, step=3))
            elsewhere(lambda: store.load(1))
            other.save({"x": 1}, step=1)

    raised = interrupted(monkeypatch, handler)

    store.save({**STATE, "more": 1}, step=2)

    assert raised == [None] * 3
    assert {info.step for info in store.checkpoints()} == {1, 2, 3}
    check_store(other.path)


def test_an_act_that_a_handler_ended_is_not_under_way_any_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class HandlerError(Exception):
        pass

    def raising(*_: Any, **__: Any) -> Any:
        raise HandlerError

    monkeypatch.setattr(publish, "publish", raising)
    with pytest.raises(HandlerError) as caught:
        store.save(STATE, step=1)
    monkeypatch.undo()
    store.save(STATE, step=2)

    assert caught.value.__traceback__ is not None  # it keeps the frames of the save
    assert [info.step for info in store.checkpoints()] == [2]


def test_a_lock_of_this_same_thread_is_not_waited_for(store: Store) -> None:
    with locks.lock_exclusive(store.path, timeout_s=0.0):
        with pytest.raises(InUse, match="another call in this same thread"):
            locks.lock_exclusive(store.path, timeout_s=1.0)
        with pytest.raises(InUse, match="by another process"):
            elsewhere(lambda: locks.lock_exclusive(store.path, timeout_s=0.0))


PROGRAM = """
import atexit, gc, os, signal, sys, threading, time, weakref
import numpy as np
from ckstore import Store
from ckstore.errors import CkstoreError, InUse

store = Store.open_or_init("store")
STATE = {f"w{i}": np.arange(400_000, dtype=np.float32) + i for i in range(8)}
"""


def run_program(
    folder: Path, text: str, *options: str, words: Sequence[str] = (), python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Run a program that has a store; a deadlock ends in `subprocess.TimeoutExpired`."""
    return subprocess.run(
        [python, *options, "-c", PROGRAM + text, *words],
        cwd=folder,
        env={
            "PYTHONPATH": f"{_ROOT}:{_ROOT}/migrations",
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": os.environ["PYTHONWARNINGS"],
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


def opened(folder: Path) -> Store:
    """Open the store that a program has left, after a look at the invariants."""
    opened = Store.open(folder / "store")
    opened.gc()
    check_store(opened.path)
    return opened


HELD = {
    "executors": "concurrent.futures.thread._global_shutdown_lock",
    "threads that start": "threading._active_limbo_lock",
    "threads that end": "threading._shutdown_locks_lock",
}


@pytest.mark.skipif(not hasattr(__import__("threading"), "_shutdown_locks_lock"), reason="Python 3.13 has none of them")
@pytest.mark.parametrize("lock", HELD)
def test_a_handler_saves_while_its_thread_holds_a_lock_of_the_interpreter(
    warm: Path, tmp_path: Path, lock: str
) -> None:
    text = f"""
import concurrent.futures.thread
signal.signal(signal.SIGUSR1, lambda *_: print(store.save(STATE, step=1).name))
with {HELD[lock]}:
    signal.raise_signal(signal.SIGUSR1)
store.verify()
"""
    done = run_program(tmp_path, text, python=warm / "python")

    assert (done.stdout, done.stderr) == ("main@1\n", "")


def test_what_is_freed_or_finalized_in_an_act_cannot_save_and_outside_one_can(warm: Path, tmp_path: Path) -> None:
    text = """
class Saving:
    def __init__(self, step):
        self.step = step
        weakref.finalize(self, self.saved, "callback", step + 10).atexit = False

    @staticmethod
    def saved(how, step):
        try:
            print(how, store.save(STATE, step=step).step)
        except InUse as error:
            print(how, "refused", "save of main@5" in str(error))

    def __del__(self):
        self.saved("del", self.step)


class Stateful:
    def state_dict(self):
        Saving(2)
        return {}

    def load_state_dict(self, state):
        pass


Saving(1)
store.save({**STATE, "object": Stateful()}, step=5)
"""
    done = run_program(tmp_path, text, python=warm / "python")

    lines = ["del 1", "callback 11", "del refused True", "callback refused True"]
    assert (sorted(done.stdout.splitlines()), done.stderr) == (sorted(lines), "")
    assert [info.step for info in opened(tmp_path).checkpoints()] == [1, 11, 5]


def test_everything_works_in_an_atexit_handler(tmp_path: Path) -> None:
    text = """
@atexit.register
def last():
    store.save(STATE, step=1)
    with store.open_checkpoint(1) as checkpoint:
        print(float(checkpoint.slice("w1")[0:1][0]), len(checkpoint.load()))
    print(len(store.load(1, mmap=True)), store.verify().ok, store.gc().freed_count, store.info().durable)
"""
    done = run_program(tmp_path, text)

    assert (done.stdout.splitlines()[0], done.stderr, done.returncode) == ("1.0 8", "", 0)
    assert done.stdout.splitlines()[1].startswith("8 True 0 ")
    assert opened(tmp_path).latest() is not None


def test_when_the_interpreter_takes_itself_apart_the_error_says_so(tmp_path: Path) -> None:
    text = """
store.save(STATE, step=1)

class Late:
    def __del__(self, store=store, STATE=STATE, CkstoreError=CkstoreError, print=print):
        for act in (lambda: store.save(STATE, step=2), lambda: store.load(1), lambda: store.verify()):
            try:
                act()
            except CkstoreError as error:
                print(error.message)

sys.modules["late"] = Late()
"""
    done = run_program(tmp_path, text)

    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "save failed",
        "load failed",
        "verify failed",
    ]
    assert "the interpreter is shutting down" in done.stdout
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize("daemon", [True, False])
def test_a_thread_that_saves_while_the_interpreter_ends_leaves_a_whole_store(tmp_path: Path, daemon: bool) -> None:
    text = f"""
store.save(STATE, step=0)
begun = threading.Event()

def go_on():
    for step in range(1, 6):
        store.save({{**STATE, "n": step, "w0": STATE["w0"] + step}}, step=step)
        begun.set()

threading.Thread(target=go_on, daemon={daemon}).start()
begun.wait()
"""
    done = run_program(tmp_path, text)

    steps = [info.step for info in opened(tmp_path).checkpoints()]
    assert done.returncode == 0, done.stderr
    assert steps == list(range(len(steps)))
    assert len(steps) >= 2 if daemon else len(steps) == 6


def test_a_handler_saves_while_other_threads_save(warm: Path, tmp_path: Path) -> None:
    text = """
saved = []

def handler(*_):
    try:
        saved.append(store.save(STATE, run="handler").step)
    except InUse:  # the handler itself was interrupted
        pass

signal.signal(signal.SIGUSR1, handler)

def go_on(run):
    for step in range(4):
        store.save({**STATE, "n": step}, step=step, run=run)
        os.kill(os.getpid(), signal.SIGUSR1)

threads = [threading.Thread(target=go_on, args=(run,)) for run in ("a", "b")]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGUSR1)
print(saved == list(range(len(saved))) and len(saved) > 0)
"""
    done = run_program(tmp_path, text, python=warm / "python")

    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
    assert {info.run for info in opened(tmp_path).checkpoints()} == {"a", "b", "handler"}


@pytest.mark.parametrize("children", representatives([5, 20], 5))
def test_a_child_that_is_forked_while_another_thread_saves_can_save(warm: Path, tmp_path: Path, children: int) -> None:
    text = """
done = threading.Event()

def go_on():
    step = 0
    while not done.is_set():
        store.save({**STATE, "n": np.full(3, float(step))}, step=step, run="parent")
        step += 1

store.save(STATE)  # a module that another thread is importing is never imported in a child
thread = threading.Thread(target=go_on)
thread.start()
for step in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(120)  # a deadlock ends the child
            store.save({**STATE, "n": np.full(3, float(step))}, step=step, run="child")
            status = 0
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
thread.join()
"""
    done = run_program(
        tmp_path, text, "-W", "ignore::DeprecationWarning", words=[str(children)], python=warm / "python"
    )

    assert done.stdout.split() == ["0"] * children
    other = [line for line in done.stderr.splitlines() if "was open in the parent process at the fork" not in line]
    assert other == []
    store = opened(tmp_path)
    assert [info.step for info in store.checkpoints("child")] == list(range(children))
    assert store.latest("parent") is not None


@pytest.mark.parametrize("room", ["manifest_cache", "pace"])
def test_a_child_waits_for_no_lock_that_a_thread_of_its_parent_had(warm: Path, tmp_path: Path, room: str) -> None:
    text = f"""
from ckstore.ops import {room} as room
store.save(STATE, step=0)
held, done = threading.Event(), threading.Event()

def hold():
    with room._mutex:
        held.set()
        done.wait(240)

thread = threading.Thread(target=hold)
thread.start()
held.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(120)  # a deadlock ends the child
    store.save(STATE, step=1)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
thread.join()
"""
    done = run_program(tmp_path, text, "-W", "ignore::DeprecationWarning", python=warm / "python")

    assert (done.stdout, done.stderr) == ("0\n", "")
    assert [info.step for info in opened(tmp_path).checkpoints()] == [0, 1]


def test_a_child_that_is_forked_in_the_middle_of_a_save_leaves_it_to_its_parent(warm: Path, tmp_path: Path) -> None:
    text = """
from ckstore.ops.save import write
from tests.support.look import directory_of, files_of, leaves_of
children = []

def handler(*_):
    child = os.fork()
    if child:
        children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    signal.alarm(120)
    try:
        store.save(STATE, step=9)
    except InUse:
        sys.exit(7)  # through all frames of the save

signal.signal(signal.SIGUSR1, handler)
original = write._records
write._records = lambda *args: (signal.raise_signal(signal.SIGUSR1), original(*args))[1]
print(store.save(STATE, step=1).step, *children)
"""
    done = run_program(tmp_path, text, "-W", "ignore::DeprecationWarning", python=warm / "python")

    assert (done.stdout.split(), done.stderr) == (["1", "7"], "")
    assert [info.step for info in opened(tmp_path).checkpoints()] == [1]
