"""A run belongs to one training: fresh, resumed, rolled back, forked and two at once, with each framework.

A training begins in a handle of its own, as in a process of its own: nothing is known there of what another one saved.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ckstore import BadInput, CkstoreError, NoSuchRef, RankFailed, RunInUse, Store
from ckstore.ops.save import continuation, save
from ckstore.training import capture, restore
from tests.integrations.marks import TRAINS
from tests.support.requirements import require
from tests.support.stores import check_store

pytestmark = TRAINS

Train = Callable[[Store, Path, str], object]
"""Trains with a store, in a folder, from a ref or from the start if that is empty; saves at least three times."""


def loop(store: Store, _folder: Path, ref: str) -> None:
    model = torch.nn.Linear(2, 2)
    first = 1
    if ref:
        first = restore(store, ref, model=model).info.step + 1
    for step in range(first, 4):
        store.save(capture(model), step, if_exists="replace")
        model.weight.data += torch.rand(2, 2)


def in_background(store: Store, _folder: Path, ref: str) -> None:
    model = torch.nn.Linear(2, 2)
    first = 1
    if ref:
        first = restore(store, ref, model=model).info.step + 1
    for step in range(first, 4):
        model.weight.data += torch.rand(2, 2)
        store.save_async(capture(model), step, if_exists="replace").result(120)


def trainer(store: Store, folder: Path, ref: str, cls: Any = None) -> None:
    from tests.integrations import tiny_trainer

    torch.rand(1)
    made = tiny_trainer.make(cls or tiny_trainer.mixed(), folder, store, seed_of_folder(folder))
    made.train(resume_from_checkpoint=f"ckstore:{ref}" if ref else None)


def seed_of_folder(folder: Path) -> Any:
    """Return a model that differs from those of other trainings."""
    from tests.integrations import tiny_trainer

    model = tiny_trainer.model()
    with torch.no_grad():
        next(model.parameters()).add_(len(folder.name))
    return model


def trainer_state(store: Store, folder: Path, ref: str) -> None:
    from tests.integrations import tiny_trainer

    trainer(store, folder, ref, tiny_trainer.native("state"))


def trainer_background(store: Store, folder: Path, ref: str) -> None:
    from tests.integrations import tiny_trainer

    trainer(store, folder, ref, tiny_trainer.native("background"))


def callback(store: Store, folder: Path, ref: str) -> None:
    from transformers import Trainer

    from ckstore.integrations.transformers import CkstoreCallback, directory_to_resume
    from tests.integrations import tiny_trainer

    saving = [CkstoreCallback(store)]
    made = tiny_trainer.make(Trainer, folder, None, seed_of_folder(folder), callbacks=saving)
    made.train(resume_from_checkpoint=directory_to_resume(store, folder, ref)[0] if ref else None)


def lightning(store: Store, folder: Path, ref: str) -> None:
    from tests.integrations.tiny_lightning import fit

    fit(store, folder, f"ckstore:{ref}" if ref else None, seed=len(folder.name))


def lightning_background(store: Store, folder: Path, ref: str) -> None:
    from tests.integrations.tiny_lightning import fit

    fit(store, folder, f"ckstore:{ref}" if ref else None, seed=len(folder.name), background=True)


def accelerated(store: Store, folder: Path, ref: str) -> None:
    from tests.integrations.tiny_accelerate import train

    train(store, folder, ref, batch_size=4 if len(folder.name) % 2 else 8)


def distributed(store: Store, _folder: Path, ref: str) -> None:
    from ckstore.integrations import dcp

    state, first = {"w": torch.rand(8)}, 1
    if ref:
        first = dcp.load(store, state, ref).info.step + 1
    for step in range(first, 4):
        state["w"] += torch.rand(8)
        dcp.save(store, state, step, store.run or "main", if_exists="replace")


def by_path(store: Store, folder: Path, ref: str) -> None:
    """As `distributed`, with the path of the store instead of a handle, which each call opens again."""
    from ckstore.integrations import dcp
    from ckstore.integrations.dcp import lineages

    lineages._by_path.clear()
    state, first = {"w": torch.rand(8)}, 1
    if ref:
        first = dcp.load(store.path, state, ref).info.step + 1
    for step in range(first, 4):
        state["w"] += torch.rand(8)
        dcp.save(store.path, state, step, store.run or "main", if_exists="replace")


def deepspeed(store: Store, folder: Path, ref: str) -> None:
    require(importlib.util.find_spec("deepspeed") is not None, "needs deepspeed")
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo

    from ckstore.integrations.deepspeed import install, load

    def load_checkpoint(_folder: str, tag: str) -> tuple[str, object]:
        engine.checkpoint_engine.load(str(Path(_folder, tag, "states.pt")))
        return tag, {}

    engine = SimpleNamespace(load_checkpoint=load_checkpoint)
    made = install(engine, store)
    first = 1
    if ref:
        load(engine, store, str(folder / "resumed"), ref)
        first = store.info(ref).step + 1
    for step in range(first, 4):
        info = CheckpointCommitInfo(f"global_step{step}", str(folder / "out"), True)
        (folder / "out" / info.tag).mkdir(parents=True)
        made.save({"w": torch.rand(8)}, str(folder / "out" / info.tag / "states.pt"))
        made.commit(info)


def url(store: Store, _folder: Path, ref: str) -> None:
    from ckstore.integrations.fsspec import CkstoreFileSystem

    fs: Any = CkstoreFileSystem(if_exists="replace", skip_instance_cache=True)
    top, first = f"ckstore://{store.path}", 1
    if ref:
        run, _, name = ref.partition("@")
        with fs.open(f"{top}/{run}/{name}/w.pt", "rb") as file:
            torch.load(file)
        first = store.info(ref).step + 1
    for step in range(first, 4):
        with fs.transaction, fs.open(f"{top}/{store.run}/{step}/w.pt", "wb") as file:
            torch.save(torch.rand(8), file)


FRAMEWORKS: dict[str, Train] = {
    "capture": loop,
    "capture in the background": in_background,
    "Trainer": trainer,
    "Trainer, state": trainer_state,
    "Trainer, background": trainer_background,
    "Trainer, callback": callback,
    "Lightning": lightning,
    "Lightning, background": lightning_background,
    "accelerate": accelerated,
    "DCP": distributed,
    "DCP by path": by_path,
    "DeepSpeed": deepspeed,
    "fsspec": url,
}
NEEDS = {"Trainer": "transformers", "Lightning": "lightning", "accelerate": "accelerate"}
IN_A_SAVER = ("capture in the background", "Trainer, background", "Lightning, background")
"""Another process saves: what happens inside its save is not reached from here."""


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    needed = NEEDS.get(name.partition(",")[0])
    require(needed is None or importlib.util.find_spec(needed) is not None, f"needs {needed}")
    torch.set_num_threads(1)
    return name


@pytest.fixture
def store(framework: str, tmp_path: Path) -> Store:
    """A store with a training of the framework in the run ``main``."""
    made = Store.init(tmp_path / "store", run="main")
    FRAMEWORKS[framework](made, tmp_path / "first", "")
    assert len(made.checkpoints()) >= 3
    return made


def process(store: Store, run: str = "main") -> Store:
    """Return a handle as another process has it."""
    continuation._drawn.clear()
    return Store.open(store.path, run=run)


def steps(store: Store, run: str = "main") -> dict[int, str]:
    return {info.step: info.id for info in store.checkpoints(run)}


def refused(act: Callable[[], object]) -> RunInUse:
    with pytest.raises(CkstoreError) as raised:
        act()
    found: BaseException = raised.value
    if isinstance(found, RankFailed):
        (found,) = found.causes.values()
    assert isinstance(found, RunInUse), found
    return found


def test_a_fresh_training_replaces_nothing_and_is_not_the_latest(framework: str, store: Store, tmp_path: Path) -> None:
    before = steps(store)

    error = refused(lambda: FRAMEWORKS[framework](process(store), tmp_path / "second", ""))

    assert "run='main-2', or run=\"auto\"" in error.hint
    assert "continue_from='main@" in error.hint
    assert steps(store) == before
    check_store(store.path)


def test_a_second_training_in_the_same_process_is_refused_as_well(framework: str, store: Store, tmp_path: Path) -> None:
    if framework == "fsspec":
        pytest.skip("fsspec owns no training")
    before = steps(store)

    refused(lambda: FRAMEWORKS[framework](store, tmp_path / "second", ""))

    assert steps(store) == before
    check_store(store.path)


def test_a_second_trainer_that_would_save_later_steps_is_refused_as_well(tmp_path: Path) -> None:
    require(importlib.util.find_spec("transformers") is not None, "needs transformers")
    from tests.integrations import tiny_trainer

    store = Store.init(tmp_path / "store", run="main")
    tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "a", store, max_steps=2).train()
    before = steps(store)

    second = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "b", store, max_steps=4, save_steps=4)
    refused(second.train)

    assert steps(store) == before
    check_store(store.path)


def test_a_second_fit_that_would_save_later_steps_is_refused_as_well(tmp_path: Path) -> None:
    require(importlib.util.find_spec("lightning") is not None, "needs lightning")
    from tests.integrations.tiny_lightning import fit

    store = Store.init(tmp_path / "store", run="main")
    fit(store, tmp_path / "a", options={"max_steps": 2})
    before = steps(store)

    refused(lambda: fit(store, tmp_path / "b", seed=2, options={"max_steps": 4}, every_n_train_steps=4))

    assert steps(store) == before
    check_store(store.path)


def test_a_resumed_training_goes_on(framework: str, store: Store, tmp_path: Path) -> None:
    before = steps(store)
    newest = max(before)
    for pin in store.pins():  # of a marker
        if pin.id == before[newest]:
            store.unpin(pin)
    store.delete(f"main@{newest}", now=True)
    ref = f"main@{sorted(before)[-2]}"

    FRAMEWORKS[framework](process(store), tmp_path / "second", ref)

    after = steps(store)
    assert after.keys() == before.keys()
    assert {step: id for step, id in after.items() if step != newest} == {
        step: id for step, id in before.items() if step != newest
    }
    assert store.info(f"main@{newest}").parent == store.info(ref).id
    check_store(store.path)


def test_a_training_that_was_rolled_back_replaces_what_came_after(framework: str, store: Store, tmp_path: Path) -> None:
    before = steps(store)
    first, *later = sorted(before)

    FRAMEWORKS[framework](process(store), tmp_path / "another", f"main@{first}")

    after = steps(store)
    assert after[first] == before[first]
    assert store.info(f"main@{later[0]}").parent == before[first]
    assert after.keys() == before.keys()
    check_store(store.path)


def test_a_fork_has_a_run_of_its_own_and_leaves_its_origin_as_it_is(
    framework: str, store: Store, tmp_path: Path
) -> None:
    before = steps(store)
    first = min(before)

    FRAMEWORKS[framework](process(store, "fork"), tmp_path / "second", f"main@{first}")

    made = steps(store, "fork")
    assert steps(store) == before
    assert store.info(f"fork@{min(made)}").parent == before[first]
    # Once more from its origin: that is another training.
    refused(lambda: FRAMEWORKS[framework](process(store, "fork"), tmp_path / "other", f"main@{first}"))
    assert steps(store, "fork") == made
    check_store(store.path)


def test_of_two_that_train_at_once_the_first_ends_when_the_second_has_saved(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if framework in IN_A_SAVER or framework == "fsspec":
        pytest.skip("tests/ops/save/test_continuation.py has the saver; fsspec owns no training")
    store = Store.init(tmp_path / "store", run="main")
    real, saved = save._publish, list[str]()

    def intrude() -> None:
        saved.append(Store.open(store.path, run="main", continue_from="latest").save({"w": 1}, 1000).id)

    def publishing(context: Any, *arguments: Any) -> Any:
        if len(saved) == 1:
            saved.append("of the other process")
            other = threading.Thread(target=intrude)  # this thread is in a save
            other.start()
            other.join()
        saved.append("of this one")
        return real(context, *arguments)

    monkeypatch.setattr(save, "_publish", publishing)

    refused(lambda: FRAMEWORKS[framework](process(store), tmp_path / "first", ""))

    latest = store.latest()
    assert latest is not None
    assert latest.id == saved[3]
    assert len(store.checkpoints()) == 2
    check_store(store.path)


def test_a_training_that_is_resumed_from_its_own_directory_continues_the_checkpoint_of_it(tmp_path: Path) -> None:
    require(importlib.util.find_spec("transformers") is not None, "needs transformers")
    from tests.integrations import tiny_trainer

    store = Store.init(tmp_path / "store", run="main")
    trainer(store, tmp_path / "out", "")
    before = steps(store)

    again = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", process(store))
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))

    assert steps(store).keys() == before.keys()
    assert store.info("main@4").parent == before[2]
    # A directory of another training, whose checkpoint the store does not have.
    alone = tiny_trainer.make(
        tiny_trainer.mixed(), tmp_path / "other", Store.init(tmp_path / "o"), seed_of_folder(tmp_path / "another")
    )
    alone.train()
    foreign = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "other", process(store))
    with pytest.raises(RunInUse):
        foreign.train(resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-2"))
    check_store(store.path)


def test_auto_gives_each_training_a_run_and_resumes_none(tmp_path: Path) -> None:
    require(importlib.util.find_spec("lightning") is not None, "needs lightning")
    from ckstore.integrations.lightning import CkstoreCheckpointIO
    from tests.integrations.tiny_lightning import fit

    store = Store.init(tmp_path / "store", run="gpt")
    for name in ("one", "second", "third"):
        fit(None, tmp_path / name, io=CkstoreCheckpointIO(store, "auto"), seed=len(name))

    assert {info.run for info in store.checkpoints()} >= {"gpt"}
    assert [run.name for run in store.runs()] == ["gpt", "gpt-2", "gpt-3"]
    with pytest.raises(NoSuchRef):
        CkstoreCheckpointIO(store, "auto").load_checkpoint("ckstore:latest")
    check_store(store.path)


def test_a_fresh_training_with_accelerate_leaves_the_directories_of_another_one(tmp_path: Path) -> None:
    require(importlib.util.find_spec("accelerate") is not None, "needs accelerate")
    store = Store.init(tmp_path / "store", run="main")
    accelerated(store, tmp_path / "out", "")
    weights = tmp_path / "out" / "checkpoints" / "checkpoint_0" / "model.safetensors"
    before = weights.read_bytes(), weights.stat().st_mtime_ns

    refused(lambda: accelerated(process(store), tmp_path / "out", ""))

    assert (weights.read_bytes(), weights.stat().st_mtime_ns) == before
    check_store(store.path)


def test_a_run_of_a_distributed_save_and_of_a_url_has_a_name(tmp_path: Path) -> None:
    from ckstore.integrations import dcp
    from ckstore.integrations.fsspec import CkstoreFileSystem

    store = Store.init(tmp_path / "store")
    fs: Any = CkstoreFileSystem(skip_instance_cache=True)
    with pytest.raises(BadInput, match="needs the name of a specific run"):
        dcp.save(store, {"w": torch.ones(1)}, 1, run="auto")
    with pytest.raises(BadInput, match="needs the name of a specific run"), fs.transaction:
        fs.open(f"ckstore://{store.path}/auto/1/w", "wb")

    assert store.checkpoints() == []
