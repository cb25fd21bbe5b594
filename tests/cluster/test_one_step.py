"""Two hosts whose locks do not reach each other save one step at the same moment: what is acknowledged is there.

``CKSTORE_CRASH=full`` takes a thousand rounds of each pair of rules; else twenty.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from ckstore import CheckpointInfo, CkstoreError, InUse, SaveFailed, StepExists, Store
from ckstore.fs.locks import DirectoryLock
from ckstore.objects import publish
from ckstore.provisional import IfExists
from tests.support.coverage import covered
from tests.support.requirements import CRASH_FULL, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

_ROUNDS = 1000 if CRASH_FULL else 20
_OF_A_STORE = 20
_RUN = "main"
_SEED = int(os.environ.get("CKSTORE_CRASH_SEED", "28"))
_JITTER_S = 0.004
_DEADLINE_S = 60.0

pytestmark = [
    pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning"),
    pytest.mark.crash,
    pytest.mark.timeout(3600 if CRASH_FULL else 300),
]
Answer = CheckpointInfo | CkstoreError


@pytest.fixture
def places(tmp_path: Path) -> Iterator[list[Path]]:
    """One folder, as two hosts have it mounted; afterwards the links and blobs of each store in it are right."""
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with ExitStack() as mounted:
        yield [mounted.enter_context(shared_folder(tmp_path / "real", tmp_path / name)) for name in ("one", "two")]
    stores = list((tmp_path / "real").iterdir())
    assert stores
    for store in stores:
        check_links(store)
        check_blobs(store)


@contextmanager
def opened(places: list[Path], name: str) -> Iterator[list[Store]]:
    """Open a store on both hosts, each with a catalog of its own."""
    with ExitStack() as stores, pytest.MonkeyPatch.context() as patch:
        hosts = []
        for place in places:
            patch.setenv("XDG_CACHE_HOME", f"{place} cache")
            hosts.append(stores.enter_context(Store.open_or_init(place / name)))
        yield hosts


@pytest.fixture
def hosts(places: list[Path]) -> Iterator[list[Store]]:
    """The store as two hosts have it open."""
    with opened(places, "store") as stores:
        yield stores


def state(seed: int) -> dict[str, Any]:
    return {"w": np.full(500, seed)}


def holds(store: Store, ref: Any, seed: int) -> bool:
    return bool(np.array_equal(store.load(ref)["w"], state(seed)["w"]))


class Saving(threading.Thread):
    """One save, in a thread of its own."""

    def __init__(self, save: Callable[[], CheckpointInfo]) -> None:
        super().__init__()
        self._save = save
        self._answer: Answer | BaseException | None = None
        self.start()

    def run(self) -> None:
        """Save."""
        try:
            self._answer = self._save()
        except BaseException as error:
            self._answer = error

    def answer(self) -> Answer:
        """Return what the save returned or raised, once it has."""
        self.join(_DEADLINE_S)
        assert isinstance(self._answer, Answer), self._answer
        return self._answer


def round_of(hosts: list[Store], rules: tuple[str, str], drawing: random.Random, step: int) -> list[Answer]:
    """Let both hosts save other content at a step, or at the next one; return what each was answered."""
    barrier = threading.Barrier(2)

    def save(number: int, pause_s: float) -> CheckpointInfo:
        barrier.wait(_DEADLINE_S)
        time.sleep(pause_s)
        saved = state(2 * step + number)
        if rules[number] == "next":
            return hosts[number].save(saved, run=_RUN)
        return hosts[number].save(saved, step, run=_RUN, if_exists=cast("IfExists", rules[number]))

    savings = [Saving(partial(save, number, drawing.uniform(0, _JITTER_S))) for number in range(2)]
    return [saving.answer() for saving in savings]


def kept(store: Store, run: str) -> set[str]:
    """Return the ids that are listed, superseded, or can be brought back."""
    return {info.id for info in store.checkpoints(run, superseded=True)} | {
        entry.id for entry in store.undoable() if not entry.problem
    }


_RULES = [("error", "error"), ("keep", "keep"), ("replace", "replace"), ("error", "replace"), ("next", "next")]


@pytest.mark.parametrize("rules", _RULES, ids="-".join)
def test_two_saves_of_one_step_at_the_same_moment(
    places: list[Path], rules: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``error`` and ``keep`` one is acknowledged, and is there; with ``replace`` each stays or waits in trash."""
    drawing = random.Random(_SEED)
    refused = both = 0
    # In stores of their own, since looking at all that a store has costs more with each round.
    for first in range(0, _ROUNDS, _OF_A_STORE):
        with opened(places, f"store-{first}") as hosts:
            for step in range(min(_OF_A_STORE, _ROUNDS - first)):
                answers = round_of(hosts, rules, drawing, step)
                refused += sum(not isinstance(one, CheckpointInfo) for one in answers)
                both += all(isinstance(one, CheckpointInfo) for one in answers)
                judge(hosts, rules, step, answers)
            hosts[0].gc(now=True, exclusive=True)
            assert not list(hosts[0].path.glob("checkpoints/*/.*"))
    with capsys.disabled():
        counts = {"rounds": _ROUNDS, "refused": refused, "both": both}
        print("\n" + covered("two hosts save one step", "-".join(rules), violations=0, **counts))


def judge(hosts: list[Store], rules: tuple[str, str], step: int, answers: list[Answer]) -> None:
    """Assert that both hosts were answered, and that what was acknowledged is there, as the rules promise."""
    saved = {info.id: seed for seed, info in enumerate(answers) if isinstance(info, CheckpointInfo)}
    if rules[0] in ("error", "keep") and rules[1] != "replace":
        assert len(saved) == 1, answers
        assert all(isinstance(one, CheckpointInfo | StepExists) for one in answers)
        (own,) = (seed for seed, one in enumerate(answers) if isinstance(one, CheckpointInfo) and not one.warnings)
        for store in hosts:
            listed = store.checkpoints(_RUN, superseded=True)
            assert [info.id for info in listed if info.step == step] == [*saved]
            assert holds(store, f"{_RUN}@{step}", 2 * step + own)
    elif rules[0] == "next":
        assert all(isinstance(one, CheckpointInfo) for one in answers)
        assert len({one.step for one in answers if isinstance(one, CheckpointInfo)}) == 2
        assert all(holds(hosts[1], one, 2 * step + seed) for seed, one in enumerate(answers))
    else:
        assert saved
        assert all(isinstance(one, CheckpointInfo | StepExists | InUse) for one in answers)
        assert kept(hosts[1], _RUN) >= saved.keys()
        shown = hosts[0].info(f"{_RUN}@{step}")
        assert holds(hosts[1], shown, 2 * step + saved[shown.id])


class Stopped:
    """Stops the next save of a thread when it has listed its step, until it may go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._has_listed, self._may_go_on = threading.Event(), threading.Event()
        self._thread: int | None = None
        self._real = publish._sound_of_step
        patch.setattr(publish, "_sound_of_step", self._listed)

    def _listed(self, *given: Any) -> Any:
        found = self._real(*given)
        if self._thread is None:
            self._thread = threading.get_ident()
            self._has_listed.set()
            assert self._may_go_on.wait(_DEADLINE_S)
        return found

    def wait(self) -> None:
        """Wait until the save has listed its step, and found it free."""
        assert self._has_listed.wait(_DEADLINE_S)

    def go_on(self) -> None:
        """Let it go on."""
        self._may_go_on.set()


def test_a_save_waits_for_another_host_that_has_listed_the_step(
    hosts: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hosts
    stopped = Stopped(monkeypatch)
    first = Saving(lambda: one.save(state(1), 1))
    stopped.wait()
    second = Saving(lambda: two.save(state(2), 1))
    same = Saving(lambda: two.save(state(1), 1))
    time.sleep(0.2)
    assert two.checkpoints() == []
    stopped.go_on()

    saved = first.answer()
    assert isinstance(saved, CheckpointInfo)
    assert isinstance(second.answer(), StepExists)
    assert same.answer() == saved
    assert [info.id for info in two.checkpoints(superseded=True)] == [saved.id]


@pytest.mark.parametrize("third", [False, True], ids=["two", "and a third one that has the hidden name"])
def test_a_save_that_stood_still_publishes_nothing_after_another_host_went_on(
    hosts: list[Store], monkeypatch: pytest.MonkeyPatch, third: bool
) -> None:
    one, two = hosts
    monkeypatch.setattr(publish, "_HIDDEN_S", 0.3)
    # The mark of its lock would tell it; a full disk takes none.
    monkeypatch.setattr(DirectoryLock, "check", lambda _: None)
    stopped = Stopped(monkeypatch)
    first = Saving(lambda: one.save(state(1), 1))
    stopped.wait()
    if not third:
        second = Saving(lambda: two.save(state(2), 1)).answer()
        stopped.go_on()
    else:
        last = Stopped(monkeypatch)
        saving = Saving(lambda: two.save(state(2), 1))
        last.wait()
        stopped.go_on()
        assert isinstance(first.answer(), SaveFailed)
        last.go_on()
        second = saving.answer()
    assert isinstance(first.answer(), SaveFailed)

    saved = [second.id] if isinstance(second, CheckpointInfo) else []
    assert third or saved
    for store in hosts:
        assert [info.id for info in store.checkpoints(superseded=True)] == saved
    again = two.save(state(2), 1)
    assert holds(one, again, 2)
    assert one.verify().ok


def test_a_save_that_died_under_the_hidden_name_does_not_keep_its_step(
    hosts: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hosts
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr(publish, "_sound_of_step", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            Store.open(one.path).save(state(1), 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in one.path.glob("checkpoints/*/.*")] == [".1"]
    assert two.checkpoints() == []
    assert two.verify().ok
    monkeypatch.setattr(publish, "_HIDDEN_S", 0.3)

    saved = two.save(state(1), 1)
    assert holds(one, saved, 1)
    assert not list(one.path.glob("checkpoints/*/.*"))
