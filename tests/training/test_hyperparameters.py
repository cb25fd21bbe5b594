"""What a restore replaces of a program's hyper-parameters is named by one warning; what a schedule changes is not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CkstoreWarning, Store
from ckstore.training import Conditions, ResumeReport, capture, restore
from ckstore.training.conditions import differences

Made = tuple[torch.nn.Module, torch.optim.Optimizer, Any]


def make(lr: float = 1e-2, schedule: str = "", weight_decay: float = 0.01) -> Made:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    scheduler: Any = None
    if schedule == "step":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    elif schedule == "one cycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    elif schedule == "plateau":
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return model, optimizer, scheduler


def trained(store: Store, made: Made) -> None:
    model, optimizer, scheduler = made
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step(*([1.0] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))
    store.save(capture(model, optimizer, scheduler=scheduler), 3)


def resumed(store: Store, made: Made) -> tuple[ResumeReport, list[str]]:
    model, optimizer, scheduler = made
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = restore(store, "latest", model=model, optimizer=optimizer, scheduler=scheduler)
    return report, [str(one.message) for one in told if issubclass(one.category, CkstoreWarning)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "s")


@pytest.mark.parametrize("schedule", ["", "step"])
def test_another_rate_and_decay_are_named_and_the_checkpoint_counts(store: Store, schedule: str) -> None:
    trained(store, make(schedule=schedule))
    made = make(3e-3, schedule, 0.1)

    report, told = resumed(store, made)

    assert report.overwritten == (
        "optimizer.param_groups[0]['lr'] is 0.01 as in the checkpoint, your program gave 0.003",
        "optimizer.param_groups[0]['weight_decay'] is 0.01 as in the checkpoint, your program gave 0.1",
    )
    assert told == [f"main@3 restored, but: {'; '.join(report.overwritten)}"]
    assert made[1].param_groups[0]["weight_decay"] == 0.01
    assert report.inexact == ()


@pytest.mark.parametrize("schedule", ["", "step", "one cycle", "plateau"])
def test_what_a_schedule_has_changed_is_no_difference(store: Store, schedule: str) -> None:
    trained(store, make(schedule=schedule))

    report, told = resumed(store, make(schedule=schedule))

    assert (report.overwritten, told) == ((), [])


def test_of_several_optimizers_the_one_is_named(store: Store) -> None:
    def several(lr: float) -> tuple[torch.nn.Module, dict[str, torch.optim.Optimizer]]:
        model = torch.nn.Linear(2, 1)
        return model, {
            "a": torch.optim.SGD([model.weight], lr=0.1),
            "b": torch.optim.SGD([model.bias], lr=lr),
        }

    model, optimizers = several(0.1)
    store.save(capture(model, optimizers), 1)
    model, optimizers = several(0.2)

    with pytest.warns(CkstoreWarning, match="optimizer\\['b'\\]"):
        report = restore(store, "latest", model=model, optimizer=optimizers)

    assert report.overwritten == (
        "optimizer['b'].param_groups[0]['lr'] is 0.1 as in the checkpoint, your program gave 0.2",
    )


OTHER_SETTINGS: list[tuple[Any, str, Any]] = [
    (torch.optim.Adam, "decoupled_weight_decay", True),  # as if the checkpoint was that of an AdamW
    (torch.optim.NAdam, "momentum_decay", 0.1),
    (torch.optim.Adagrad, "lr_decay", 0.1),
    (torch.optim.ASGD, "lambd", 0.1),
    (torch.optim.Rprop, "etas", (0.1, 1.3)),
    (torch.optim.Adafactor, "beta2_decay", -0.5),
    (torch.optim.LBFGS, "max_iter", 3),
]


@pytest.mark.parametrize("kind, name, value", OTHER_SETTINGS, ids=[kind.__name__ for kind, *_ in OTHER_SETTINGS])
def test_settings_of_each_kind_of_optimizer_are_named(store: Store, kind: Any, name: str, value: Any) -> None:
    saved, own = (kind([torch.nn.Parameter(torch.ones(2, 2))], lr=0.1) for _ in range(2))
    if name not in own.param_groups[0]:
        pytest.skip(f"{kind.__name__} of an older torch has no {name}")
    given = own.param_groups[0][name]
    saved.param_groups[0][name] = value
    store.save(capture(optimizer=saved), 1)

    report = restore(store, "latest", optimizer=own)

    sentence = f"optimizer.param_groups[0][{name!r}] is {value!r} as in the checkpoint, your program gave {given!r}"
    assert report.overwritten == (sentence,)


def test_settings_of_a_framework_are_compared_where_the_checkpoint_has_them() -> None:
    now = Conditions(settings={"learning_rate": 3e-4, "optim": "adamw"})
    before = Conditions.from_json(
        Conditions(rng_ranks=(0,), settings={"learning_rate": 1e-3, "optim": "adamw"}).to_json()
    )
    older = Conditions.from_json({k: v for k, v in Conditions().to_json().items() if k != "settings"})

    (said,) = differences(before, now, ())

    assert said == "learning_rate is 0.0003 now, 0.001 in the checkpoint, which has its own optimizer and schedule"
    assert [*differences(older, now, (), rng=False)] == ["random states were not restored, since rng=False"]
