"""The state of a run is captured whole, continues bit for bit, and a report says what will not."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import textwrap
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from ckstore import BadInput, CkstoreWarning, DoesNotFit, Store
from ckstore.training import Conditions, ElasticSampler, capture, provenance, restore
from ckstore.training.conditions import differences
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.requirements import require
from tests.support.torch_versions import compiled


class Run:
    """A small run that draws from every generator."""

    def __init__(self, batch_size: int = 4) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global generator is what is captured
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu")
        data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(8, 8))
        self.loader = torch.utils.data.DataLoader(
            data, batch_size=batch_size, shuffle=True, generator=torch.Generator().manual_seed(2)
        )

    @property
    def parts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "dataloader": self.loader,
        }

    def epochs(self, count: int) -> None:
        for _ in range(count):
            for (rows,) in self.loader:
                noise = random.random() + float(np.random.rand())  # noqa: NPY002 - see above
                self.optimizer.zero_grad()
                self.scaler.scale(self.model(rows + noise).sum()).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()

    def values(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.model.state_dict().values()]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def test_a_run_goes_on_bit_for_bit_from_what_was_captured(store: Store) -> None:
    whole = Run()
    whole.epochs(2)
    store.save(capture(**whole.parts, extra={"epoch": 2, "losses": []}), step=2)
    whole.epochs(2)

    again = Run()
    again.epochs(1)  # its generators are elsewhere
    report = restore(store, **again.parts)
    again.epochs(2)

    assert all(map(torch.equal, whole.values(), again.values()))
    assert report.present == ("model", "optimizer", "scheduler", "scaler", "dataloader")
    assert report.extra == {"epoch": 2, "losses": []}
    assert report.inexact == ()


def test_any_named_part_comes_back_in_place_and_a_plain_value_in_the_report(store: Store) -> None:
    run = Run()
    ema = torch.optim.swa_utils.AveragedModel(run.model)
    run.epochs(1)
    ema.update_parameters(run.model)
    queue = {"keys": torch.arange(4.0)}
    store.save(capture(run.model, run.optimizer, ema=ema, queue=queue, teacher=None, tokens=7, extra={"epoch": 1}))

    again = Run()
    other = torch.optim.swa_utils.AveragedModel(again.model)
    place = torch.zeros(4)
    report = restore(
        store, model=again.model, optimizer=again.optimizer, ema=other, queue={"keys": place}, teacher=None
    )

    assert all(map(torch.equal, ema.state_dict().values(), other.state_dict().values()))
    assert torch.equal(place, queue["keys"])
    assert report.present == ("model", "optimizer", "ema", "queue")
    assert report.extra == {"epoch": 1, "tokens": 7}
    assert report.unused == ()
    with pytest.raises(BadInput, match="tokens: nothing can be loaded into a value of type int"):
        restore(store, model=again.model, tokens=0)
    with pytest.raises(DoesNotFit, match="holds no teacher"):
        restore(store, model=again.model, teacher=again.model)
    with pytest.raises(BadInput, match="training is the name of the record"):
        capture(run.model, training=1)
    with pytest.raises(BadInput, match="epoch is a part and also in extra"):
        capture(run.model, epoch=1, extra={"epoch": 1})
    with pytest.raises(BadInput, match="ref is an argument of restore"):
        capture(run.model, ref=again.model)
    assert capture(run.model, strict=True)["extra"] == {"strict": True}


class Pointers(NamedTuple):
    """A part of a queue."""

    at: int
    keys: torch.Tensor


@pytest.mark.parametrize("wrap", [lambda model: model, torch.nn.DataParallel], ids=["plain", "wrapped"])
def test_plain_values_beside_tensors_in_a_dict_come_back(wrap: Callable[[Any], Any], store: Store) -> None:
    def queue(number: float) -> dict[str, Any]:
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, number)
        return {
            "keys": torch.full((2,), number),
            "at": int(number),
            "average": torch.full((3,), number) if number else None,
            "nested": {"count": int(number), "pair": (torch.full((2,), number), int(number))},
            "recent": deque([torch.full((2,), number)], maxlen=int(number) + 2),
            "pointers": Pointers(int(number), torch.full((2,), number)),
            "model": wrap(model),
        }

    store.save(capture(queue=queue(3.0)))
    again, right = queue(0.0), queue(3.0)
    own_model = again["model"]

    report = restore(store, queue=again)

    assert again["model"] is own_model
    assert torch.equal(next(again.pop("model").parameters()), next(right.pop("model").parameters()))
    assert type(again["pointers"]) is Pointers
    assert repr(again) == repr(right)
    assert (report.inexact, report.extra) == ((), {})


def test_a_tuple_with_plain_values_comes_back_in_the_report(store: Store) -> None:
    store.save(capture(meter=(torch.ones(2), 5), pair=(torch.ones(2), torch.nn.Linear(1, 1))))
    place, model = torch.zeros(2), torch.nn.Linear(1, 1)

    with pytest.raises(BadInput, match="meter: nothing can be loaded into a value of type tuple"):
        restore(store, meter=(torch.zeros(2), 0), pair=(place, model))
    report = restore(store, pair=(place, model))

    assert report.extra["meter"][1] == 5
    assert torch.equal(place, torch.ones(2))
    assert report.inexact == ()


def test_models_in_a_named_tuple_come_back(store: Store) -> None:
    class Models(NamedTuple):
        actor: torch.nn.Module
        critic: torch.nn.Module

    mine, again = (Models(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)) for _ in range(2))
    store.save(capture(models=mine))

    restore(store, models=again)

    assert torch.equal(next(mine.critic.parameters()), next(again.critic.parameters()))


def test_a_state_dict_keeps_the_versions_of_its_modules(store: Store) -> None:
    store.save(capture(model=torch.nn.BatchNorm1d(2).state_dict()))

    assert vars(store.load()["model"])["_metadata"] == {"": {"version": 2}}


def test_a_loader_that_keeps_no_place_is_named_at_the_first_capture_inside_an_epoch_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.import_module("ckstore.training.capture"), "_warned", set())
    run = Run()

    batches = iter(run.loader)
    next(batches)
    with pytest.warns(
        CkstoreWarning,
        match=r"will differ: the data loader does not save its position.*stateful_dataloader.StatefulDataLoader",
    ) as caught:
        capture(dataloader=run.loader, rng=False)
    assert caught[0].filename == __file__  # the line that a user looks for
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(batches)
        capture(dataloader=run.loader, rng=False)


def test_wrappers_of_the_model_are_not_in_the_checkpoint(store: Store) -> None:
    run = Run()
    store.save(capture(model=compiled(run.model, backend="eager"), optimizer=run.optimizer))
    other = Run()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.zero_()

    restore(store, model=torch.nn.DataParallel(other.model), optimizer=other.optimizer)

    assert all(map(torch.equal, run.values(), other.values()))


def test_a_damaged_newest_is_passed_over(store: Store) -> None:
    run = Run()
    run.epochs(1)
    store.save(capture(**run.parts), step=1)
    before = run.values()
    run.epochs(1)
    info = store.save(capture(**run.parts), step=2)
    newest = directory_of(store, info)
    largest = max(
        (blob for blob in (newest / "blobs").iterdir() if blob.stat().st_nlink == 2),
        key=lambda blob: blob.stat().st_size,
    )
    flip(largest, largest.stat().st_size // 2)
    again = Run()

    with pytest.warns(CkstoreWarning, match="newer checkpoints are damaged"):
        report = restore(store, **again.parts)

    assert report.info.step == 1
    assert all(map(torch.equal, before, again.values()))


def test_a_damaged_newest_is_passed_over_by_a_rank_that_may_only_read_and_so_marks_no_damage(store: Store) -> None:
    run = Run()
    for step in (1, 2, 3):
        run.epochs(1)
        store.save(capture(**run.parts), step=step)
    for step in (3, 2):
        for blob in (directory_of(store, step) / "blobs").iterdir():
            if blob.stat().st_nlink == 2:
                flip(blob, blob.stat().st_size // 2, keep_time=True)  # only a read finds it
        reader = Store.open(store.path, readonly=True)
        with pytest.warns(CkstoreWarning, match="since newer checkpoints are damaged"):
            assert restore(reader, **Run().parts).info.step == step - 1


@pytest.mark.parametrize("strict", [True, False])
def test_a_part_of_a_damaged_checkpoint_does_not_pass_for_what_was_there(strict: bool, store: Store) -> None:
    run = Run()
    run.epochs(1)
    store.save(capture(optimizer=run.optimizer), step=1)
    run.epochs(1)
    info = store.save(capture(model=run.model, optimizer=run.optimizer), step=2)
    for blob in (directory_of(store, info) / "blobs").iterdir():
        if blob.stat().st_nlink == 2:
            flip(blob, blob.stat().st_size // 2, keep_time=True)  # only a read finds it
    again = Run()

    with (
        pytest.warns(CkstoreWarning, match="newer checkpoints are damaged"),
        pytest.raises(BadInput, match="holds no model, and your model may hold a part of main@2, which is damaged"),
    ):
        restore(store, strict=strict, model=again.model, optimizer=again.optimizer)


def test_the_report_says_what_will_not_continue_exactly(store: Store) -> None:
    run = Run()
    store.save(capture(model=run.model, scaler=run.scaler, dataloader=run.loader, rng=False))
    other = Run(batch_size=2)

    with pytest.raises(DoesNotFit, match="no optimizer"):
        restore(store, model=other.model, optimizer=other.optimizer)
    with pytest.warns(CkstoreWarning) as told:
        report = restore(store, strict=False, model=other.model, optimizer=other.optimizer, dataloader=other.loader)

    assert [str(one.message) for one in told] == [f"main@0 restored, but: {'; '.join(report.inexact)}"]
    assert told[0].filename == __file__
    assert (report.missing, report.unused) == (("optimizer",), ("scaler",))
    assert report.inexact == (
        "the checkpoint holds no optimizer",
        "the checkpoint has a part scaler, which was not passed to restore",
        "the checkpoint holds no random states: numbers drawn from here on will differ",
        "the data loader has another batch size: 2 now, 4 in the checkpoint",
    )
    assert str(report).startswith("main@0 restored, but:\n  the checkpoint holds no optimizer")


_lr = torch.optim.lr_scheduler
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: _lr.StepLR(o, 2, 0.5),
    "LambdaLR": lambda o: _lr.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "CosineAnnealingLR": lambda o: _lr.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: _lr.CosineAnnealingWarmRestarts(o, 5),
    "OneCycleLR": lambda o: _lr.OneCycleLR(o, 2.0, total_steps=30),
    "CyclicLR": lambda o: _lr.CyclicLR(o, 0.1, 1.0, 4, cycle_momentum=False),
    "LinearLR": lambda o: _lr.LinearLR(o, 0.1, total_iters=20),
    "PolynomialLR": lambda o: _lr.PolynomialLR(o, 20),
    "SequentialLR": lambda o: _lr.SequentialLR(
        o, [_lr.LinearLR(o, 0.1, total_iters=4), _lr.CosineAnnealingLR(o, 20)], [4]
    ),
    "ReduceLROnPlateau": lambda o: _lr.ReduceLROnPlateau(o, patience=0),
}


def rates(optimizer: Any, scheduler: Any, steps: int) -> list[list[float]]:
    """Return the rates now, and after each of so many steps."""
    found = [[float(group["lr"]) for group in optimizer.param_groups]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step(*[1.0] * isinstance(scheduler, _lr.ReduceLROnPlateau))
        found.append([float(group["lr"]) for group in optimizer.param_groups])
    return found


@pytest.mark.parametrize("tensor", [False, True], ids=["a number", "a tensor"])
@pytest.mark.parametrize("together", [True, False], ids=["with its optimizer", "made after the load of its optimizer"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_rate_goes_on_when_a_scheduler_is_restored(store: Store, name: str, together: bool, tensor: bool) -> None:
    def make() -> tuple[Any, Any]:
        model = torch.nn.Linear(2, 1)
        given = zip(model.parameters(), (1.0, 0.5), strict=True)
        groups = [{"params": [one], "lr": torch.tensor(lr) if tensor else lr} for one, lr in given]
        return model, torch.optim.SGD(groups, momentum=0.9)

    model, optimizer = make()
    scheduler = SCHEDULERS[name](optimizer)
    rates(optimizer, scheduler, 7)
    store.save(capture(model, optimizer, scheduler=scheduler), step=1)
    right = rates(optimizer, scheduler, 5)
    again, its = make()
    if together:
        made = SCHEDULERS[name](its)
        restore(store, model=again, optimizer=its, scheduler=made)
    else:
        restore(store, model=again, optimizer=its)
        made = SCHEDULERS[name](its)
        restore(store, scheduler=made)

    assert rates(its, made, 5) == right


def test_another_state_is_refused_by_name(store: Store) -> None:
    store.save({"model": Run().model})

    with pytest.raises(BadInput, match=r"was not captured by ckstore\.training\.capture"):
        restore(store, model=Run().model)


def test_another_world_size_and_a_rank_without_a_random_state_are_named() -> None:
    before = Conditions(world_size=2, rng_ranks=(0, 1), rng_kinds=("python",))
    now = Conditions(world_size=4, rng_kinds=("python", "cuda"))

    assert list(differences(before, now, (3,))) == [
        "the checkpoint was saved by 2 processes, and now there are 4",
        "the checkpoint holds no random state of rank 3, only of 0, 1",
    ]
    assert (
        list(differences(before, now, (1,)))[1]
        == "the checkpoint holds no random state of cuda, which this process uses"
    )
    assert list(differences(before, now, range(4)))[1] == (
        "the checkpoint holds no random states of ranks 2, 3, only of 0, 1"
    )
    assert Conditions.from_json(before.to_json()) == before
    with pytest.raises(BadInput, match="not a record"):
        Conditions.from_json({"world_size": 1})


def test_provenance_is_recorded_on_request(tmp_path: Path, store: Store) -> None:
    import shutil

    require(shutil.which("git") is not None, "needs git")
    code = tmp_path / "code"
    code.mkdir()
    no_text = Path(os.fsdecode(os.fsencode(code) + b"/\xff.py"))
    no_text.write_text("1")
    file = code / "train.py"
    file.write_text("1")
    git = ["git", "-C", str(code), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["config", "core.quotePath", "false"], ["add", "."], ["commit", "-q", "-m", "m"]):
        subprocess.run([*git, *arguments], check=True, timeout=60)
    (code / ".git" / "index.lock").touch()  # another process is at work there

    clean = provenance({"lr": 0.1}, directory=code)
    file.write_text("2")
    no_text.write_text("2")
    changed = provenance(directory=code)
    info = store.save({}, metadata=clean)

    found = store.info(info).metadata["provenance"]
    assert found["config"] == {"lr": 0.1}
    assert found["packages"]["torch"] == importlib.metadata.version("torch")
    assert found["command_line"] == sys.orig_argv
    assert len(found["git"]["revision"]) >= 40
    assert not found["git"]["changed"]
    assert changed["provenance"]["git"]["changed"]
    assert "config" not in changed["provenance"]
    assert provenance(directory=tmp_path / "nowhere")["provenance"]["git"] is None


_RANK = textwrap.dedent("""
    import json, os, sys, random
    from datetime import timedelta
    import torch, torch.distributed as dist
    from ckstore import CkstoreError, Store
    from ckstore.training import capture, restore

    def failure_of(act):
        try:
            act()
        except CkstoreError as error:
            return f"{type(error).__name__}: {error}"

    class Loader:
        def __init__(self, at): self.at = at
        def state_dict(self): return {"at": self.at}
        def load_state_dict(self, state): self.at = state["at"]

    folder, rank, world, act = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/{act}", rank=rank, world_size=world, timeout=timedelta(seconds=120)
    )
    torch.manual_seed(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model.module.noise = noise = torch.Generator().manual_seed(10 + rank)
    if act == "save":
        state = capture(model=model, dataloader=Loader(rank + 5))
        drawn = [torch.rand(3), torch.rand(3, generator=noise)]
        if rank == 0:
            Store.init(f"{folder}/store").save(state)
        print([*(numbers.tolist() for numbers in drawn), rank + 5])
    elif act == "fail":
        store = Store.open(f"{folder}/store", readonly=True)
        wanted = torch.nn.Linear(2, 3) if rank else model
        print(json.dumps([
            failure_of(lambda: capture(model=model, **{"ref": model} if rank else {})),
            failure_of(lambda: restore(store, 0, model=wanted, strict=False)),
            failure_of(lambda: restore(store, 7, model=wanted)),
        ]))
    elif act == "lost":
        dist.barrier()
        if rank == 0:
            print(failure_of(lambda: capture(model=model, ref=model)), flush=True)
        os._exit(0)  # without closing the group
    else:
        loader = Loader(0)
        report = restore(Store.open(f"{folder}/store", readonly=True), model=model, dataloader=loader)
        own = torch.rand(3, generator=noise).tolist()
        print([torch.rand(3).tolist() if act == "load" else report.inexact, own, loader.at])
    dist.barrier()
""")


def ranks(python: Path, folder: Path, world: int, act: str) -> list[str]:
    running = [
        subprocess.Popen(
            [str(python), "-c", _RANK, str(folder), str(rank), str(world), act], stdout=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=240)[0].strip().rpartition("\n")[2] for process in running]
    assert [process.returncode for process in running] == [0] * world
    return outputs


@pytest.mark.slow
def test_a_call_that_fails_on_one_rank_fails_on_all(warm: Path, tmp_path: Path) -> None:
    python = warm / "python"
    ranks(python, tmp_path, 2, "save")
    of_first, of_second = map(json.loads, ranks(python, tmp_path, 2, "fail"))

    assert of_second[0].startswith("BadInput: ref is an argument of restore")
    assert of_first[0].startswith("RankFailed: capture failed on rank 1: BadInput: ref is an argument of restore")
    assert of_second[1].startswith("DoesNotFit: ")
    assert of_first[1].startswith("RankFailed: restore failed on rank 1: DoesNotFit: ")
    # Each rank has the error of its own call if it fails on all of them.
    assert [failures[2].partition(":")[0] for failures in (of_first, of_second)] == ["NoSuchRef", "NoSuchRef"]


@pytest.mark.slow
def test_a_call_that_fails_after_another_rank_has_died_raises_its_own_error(warm: Path, tmp_path: Path) -> None:
    of_first, of_dead = ranks(warm / "python", tmp_path, 2, "lost")

    assert of_first.startswith("BadInput: ref is an argument of restore")
    assert not of_dead


@pytest.mark.slow
def test_each_rank_gets_its_own_random_states_and_one_more_is_told_that_it_has_none(warm: Path, tmp_path: Path) -> None:
    python = warm / "python"
    drawn = ranks(python, tmp_path, 2, "save")

    assert drawn[0] != drawn[1]
    assert ranks(python, tmp_path, 2, "load") == drawn
    (alone,) = ranks(python, tmp_path, 1, "report")
    assert alone.startswith("[('the checkpoint was saved by 2 processes, and now there is 1',)")
    # What is alike on all ranks stays alike: a new rank takes the generators and the place of rank 0.
    *_, third = ranks(python, tmp_path, 3, "more")
    own = drawn[0].split("], [")[1]
    assert third.endswith(f"[{own}")
    assert "the checkpoint holds no random state of rank 2, only of 0, 1" in third


def test_a_rank_that_restored_another_checkpoint_is_named_on_each_rank(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run()
    infos = {0: store.save(capture(run.model), step=1), 1: store.save(capture(run.model), step=2)}
    monkeypatch.setattr(importlib.import_module("ckstore.training.restore"), "gather", lambda own: infos | {0: own})

    with pytest.warns(CkstoreWarning, match="rank 1 restored main@2, and this rank main@1"):
        report = restore(store, 1, model=run.model)

    assert report.inexact == ("rank 1 restored main@2, and this rank main@1",)
    assert restore(store, 2, model=run.model).inexact == ()


@pytest.mark.parametrize("kind", [torch.utils.data.DistributedSampler, ElasticSampler])
def test_another_seed_of_the_sampler_is_named(kind: Any, store: Store) -> None:
    def loader(seed: int) -> Any:
        numbers: Any = range(20)
        ranks_of = {"num_replicas": 1} if kind is not ElasticSampler else {"world_size": 1}
        return torch.utils.data.DataLoader(numbers, 2, sampler=kind(numbers, rank=0, seed=seed, **ranks_of))

    store.save(capture(dataloader=loader(3)))

    assert restore(store, dataloader=loader(3)).inexact == ()
    sentence = "the data loader has another sampler seed: 9 now, 3 in the checkpoint"
    assert restore(store, dataloader=loader(9)).inexact == (sentence,)


def test_an_older_checkpoint_without_the_seed_of_its_sampler_is_not_named() -> None:
    before, now = Conditions(dataloader={"class": "A"}), Conditions(dataloader={"class": "A", "sampler_seed": 3})

    assert [*differences(before, now, rng=False)][1:] == []


def test_advice_for_a_part_that_differs_is_for_a_load_that_takes_it(store: Store) -> None:
    store.save(capture(torch.nn.Linear(2, 2)))

    with pytest.raises(DoesNotFit, match="load_into loads a part that differs: strict=False loads what fits"):
        restore(store, model=torch.nn.Linear(2, 3), strict=False)
    with pytest.raises(DoesNotFit, match="load_into loads a part that differs: cast=True converts"):
        restore(store, model=torch.nn.Linear(2, 2).half())


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, ckstore.training, ckstore.integrations; print([m for m in sys.modules if m in "
    code += "('torch', 'numpy', 'transformers', 'lightning', 'accelerate', 'deepspeed')])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)

    assert done.stdout.strip() == "[]"


def test_the_path_of_a_store_is_said_to_be_no_store(tmp_path: Path) -> None:
    for given in (str(tmp_path), tmp_path, None):
        with pytest.raises(BadInput, match="restore takes an open store, got"):
            restore(given, model=torch.nn.Linear(1, 1))  # type: ignore[arg-type]
