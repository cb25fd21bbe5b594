"""Trainings on one process and on two of gloo are killed in a save, and go on as if they had not stopped.

What is compared are all bytes of the last checkpoint: weights, moments, random states of both ranks, schedulers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckstore import Best, CkstoreWarning, RetentionPolicy, Store
from tests.integrations import tiny_accelerate, tiny_trainer
from tests.integrations.marks import TRAINS
from tests.support.damage import blobs_by_size, flip
from tests.support.gloo import Group
from tests.support.look import files_of
from tests.support.once import once
from tests.support.requirements import CRASH_FULL, representatives, require_transformers
from tests.support.states import assert_same

pytestmark = TRAINS
CASES = Path(__file__).with_name("ranks_cases.py")


@dataclass(frozen=True)
class Framework:
    """One of `ranks_cases`.

    Attributes:
        name: Its function there.
        steps: Those that it saves.
        resume: What it is given to resume; an example resumes by itself.
        size: How many processes train.
    """

    name: str
    steps: tuple[int, ...]
    resume: str = ""
    size: int = 2

    def __str__(self) -> str:
        return self.name


FRAMEWORKS = [
    Framework("loop", (1, 2, 3, 4, 5), size=1),
    Framework("trainer", (2, 4, 6), "auto"),
    Framework("accelerate", (0, 1, 2, 3), "latest-valid"),
    Framework("ddp", (1, 2, 3)),
    Framework("fsdp2", (2, 4, 6, 8)),
    *([Framework("state", (2, 4, 6), "auto")] if CRASH_FULL else []),  # the Trainer whose state is saved itself
]
# In `make test` one is killed in a save, and one with damage besides; `make crash` does both to each.
BY_NAME = {framework.name: framework for framework in FRAMEWORKS}
KILLED_IN_A_SAVE = representatives(FRAMEWORKS, BY_NAME["trainer"])
DAMAGED_BESIDES = representatives(FRAMEWORKS, BY_NAME["accelerate"])
PLACES = {"trainer": "checkpoint-{}", "accelerate": "checkpoints/checkpoint_{}"}
Train = Callable[..., tuple[list[Any], str]]


@pytest.fixture(scope="module")
def run(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[list[Any], str]]:
    """Call a function of `ranks_cases` on all ranks of a new group; return what each returns, and what they printed."""
    require_transformers()
    folder = tmp_path_factory.mktemp("ranks")

    def call(size: int, case: str, **arguments: Any) -> tuple[list[Any], str]:
        log = folder / f"{uuid.uuid4()}.log"
        with Group(size, folder, CASES, python=warm / "python", log=log) as group:
            answers = group.call(case, **arguments)
        return answers, log.read_text(errors="replace")

    return call


@pytest.fixture(scope="module")
def train(run: Callable[..., tuple[list[Any], str]]) -> Train:
    """Train with a store; of ranks that are killed in the save of a step the answer is an EOFError."""

    def train(
        framework: Framework, store: Store, *, ref: str = "", kill_at: int | None = None, kill: tuple[int, ...] = ()
    ) -> tuple[list[Any], str]:
        out = str(store.path.with_name(f"{store.path.name}.out"))
        given = {"store": str(store.path), "out": out, "ref": ref, "kill_at": kill_at, "ranks": list(kill)}
        return run(framework.size, "train", name=framework.name, **given)

    return train


@pytest.fixture(scope="module", params=representatives(FRAMEWORKS, BY_NAME["trainer"], BY_NAME["accelerate"]), ids=str)
def whole(
    request: pytest.FixtureRequest, train: Train, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Framework, Store]:
    """A framework, and the store of a run without a stop."""
    framework: Framework = request.param

    def make(folder: Path) -> None:
        store = Store.init(folder / "store")
        answers, printed = train(framework, store)
        assert answers == [None] * framework.size, printed
        assert store.verify().ok

    return framework, Store.open(once(tmp_path_factory, f"whole-{framework}", make) / "store", readonly=True)


def content(store: Store, step: int) -> dict[str, Any]:
    """Return all that a checkpoint holds; only `training_args.bin` names the directory of its run."""
    with store.open_checkpoint(step) as checkpoint:
        if not (files := checkpoint.files()):
            state = store.load(step)
            return {**state, "files": {**state.get("files", {}), "training_args.bin": b""}}
        found = {}
        for file in files:
            with checkpoint.open_file(file.path) as opened:
                found[file.path] = opened.read()
        return {**found, "training_args.bin": b""}


def steps_of(store: Store) -> list[int]:
    return [info.step for info in store.checkpoints()]


def damage_newest(store: Store) -> None:
    own = [blob for blob in blobs_by_size(store, "latest") if blob.stat().st_nlink == 2]
    flip(own[-1], own[-1].stat().st_size // 2, keep_time=True)  # only who reads it finds it


def test_each_step_is_committed_once_with_the_random_states_of_both(whole: tuple[Framework, Store]) -> None:
    framework, store = whole

    assert steps_of(store) == [*framework.steps]
    files = {file.path for file in files_of(store, "latest")}
    kept = {
        "trainer": {"rng_state_0.pth", "rng_state_1.pth"} <= files,
        "accelerate": {"random_states_0.pkl", "random_states_1.pkl"} <= files,
        "ddp": framework.name == "ddp" and set(store.load()["rng"]) == {"rank-0", "rank-1"},
    }
    assert kept.get(framework.name, True)


def test_another_world_size_is_named_by_the_trainer_and_by_accelerate(
    whole: tuple[Framework, Store], train: Train, tmp_path: Path
) -> None:
    framework, store = whole
    said = "the checkpoint was saved by 2 processes, and now there is 1"

    if framework.name == "trainer":
        alone = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "alone", store, save_strategy="no")
        with pytest.warns(CkstoreWarning, match=said):
            alone.train(resume_from_checkpoint="ckstore:4")
        assert alone.resumed_inexactly == (said, "16 samples of the data will be read a second time")
    elif framework.name == "accelerate":
        with pytest.warns(CkstoreWarning, match=said):
            _, kept = tiny_accelerate.train(store, tmp_path / "alone", "3")
        assert kept.resumed_inexactly[0] == said
        answers, printed = train(Framework("unseeded", ()), store, ref="3")
        assert answers == [None, None], printed
        assert "draws its order from a generator that accelerate does not save" in printed


@pytest.mark.parametrize("whole", KILLED_IN_A_SAVE, ids=str, indirect=True)
@pytest.mark.parametrize("kill", [(1,), (0, 1), (0,)] if CRASH_FULL else [(1,)], ids=str)
def test_a_kill_in_a_save_leaves_one_checkpoint_of_one_and_the_run_goes_on_bit_for_bit(
    whole: tuple[Framework, Store], train: Train, tmp_path: Path, kill: tuple[int, ...]
) -> None:
    framework, wanted = whole
    kill = kill if framework.size > 1 else (0,)
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=1)
    before, step = framework.steps[-3:-1]

    answers, printed = train(framework, store, kill_at=step, kill=kill)

    # Rank 0 publishes: if it lives, the new one is there and the old one is gone; if not, the old one is as it was.
    assert [isinstance(answer, EOFError) for answer in answers] == [rank in kill for rank in range(framework.size)], (
        printed
    )
    assert None not in answers, printed
    there = before if 0 in kill else step
    assert steps_of(store) == [there]
    if framework.name in PLACES:  # which are told to keep one directory: it is that of a durable checkpoint
        assert (tmp_path / "store.out" / PLACES[framework.name].format(there)).is_dir()

    answers, printed = train(framework, store, ref=framework.resume)

    assert answers == [None] * framework.size, printed
    assert store.verify().ok
    last = framework.steps[-1]
    assert steps_of(store) == [last]
    assert_same(content(wanted, last), content(store, last))


@pytest.mark.parametrize("whole", DAMAGED_BESIDES, ids=str, indirect=True)
@pytest.mark.parametrize("kill", [(0, 1), (1,), (0,)] if CRASH_FULL else [(0, 1)], ids=str)
def test_after_a_kill_a_resume_passes_over_a_damaged_newest_and_ends_bit_for_bit(
    whole: tuple[Framework, Store], train: Train, tmp_path: Path, kill: tuple[int, ...]
) -> None:
    framework, wanted = whole
    kill = kill if framework.size > 1 else (0,)
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=2, keep_best=Best("loss"))
    losses = {info.step: info.metrics["loss"] for info in wanted.checkpoints()}
    best = min(losses, key=lambda step: losses[step])
    before, step = framework.steps[-2:]

    answers, printed = train(framework, store, kill_at=step, kill=kill)

    assert [isinstance(answer, EOFError) for answer in answers] == [rank in kill for rank in range(framework.size)], (
        printed
    )
    assert steps_of(store)[-1] == (before if 0 in kill else step)
    damage_newest(store)

    answers, printed = train(framework, store, ref=framework.resume)

    assert answers == [None] * framework.size, printed
    assert steps_of(store) == sorted({best, before, step})
    assert store.verify().ok
    assert_same(content(wanted, step), content(store, step))


def test_a_worker_serves_what_another_process_trains(run: Callable[..., tuple[list[Any], str]], tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=2)

    answers, printed = run(2, "hand_over", store=str(store.path), steps=12)

    assert answers == [None, None], printed
