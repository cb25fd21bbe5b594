"""Rows: every scheduler of torch with its options, alone, in a chain and in a sequence; and averages of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim import lr_scheduler as of

from tests.states.runs import loss_of, model, train
from tests.states.table import Parts, Run

MakeScheduler = Callable[[torch.optim.Optimizer], Any]


class Halving:
    """A rule for LambdaLR that has a state of its own, which LambdaLR keeps."""

    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[int] = []

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        self.seen.append(epoch)
        return float(0.5 ** (self.calls // 2))


def _run(name: str, make: MakeScheduler, *, momentum: bool = True, **options: Any) -> Run:
    def parts() -> Parts:
        made = model()
        kind: Any = torch.optim.SGD if momentum else torch.optim.AdamW
        optimizer: Any = kind(made.parameters(), lr=0.1, **({"momentum": 0.9} if momentum else {}), **options)
        return {"model": made, "optimizer": optimizer, "scheduler": make(optimizer)}

    def step(parts: Parts) -> object:
        return train(parts), parts["scheduler"].get_last_lr()

    return Run(name, parts, step)


def _plateau(**options: Any) -> Run:
    def parts() -> Parts:
        made = model()
        optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
        return {"model": made, "optimizer": optimizer, "scheduler": of.ReduceLROnPlateau(optimizer, **options)}

    def step(parts: Parts) -> object:
        parts["optimizer"].zero_grad()
        loss = loss_of(parts)
        loss.backward()
        parts["optimizer"].step()
        parts["scheduler"].step(loss.detach())
        return loss.detach(), parts["scheduler"].get_last_lr()

    return Run(f"ReduceLROnPlateau({_options(options)})", parts, step)


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_shown(value)}" for name, value in options.items())


def _shown(value: Any) -> str:
    """Return a text that is the same in every process: a function's own has its address."""
    if isinstance(value, list) and any(map(callable, value)):
        return f"[{', '.join(map(_shown, value))}]"
    return str(getattr(value, "__name__", value))


def half(epoch: int) -> float:
    return float(0.5**epoch)


_SWALR = torch.optim.swa_utils.SWALR
_SWALR_OPTIONS: list[dict[str, Any]] = [
    {"swa_lr": 0.05},
    {"swa_lr": 0.05, "anneal_epochs": 4, "anneal_strategy": "linear"},
]
_OF: list[tuple[Any, list[dict[str, Any]]]] = [
    (of.StepLR, [{"step_size": 2}, {"step_size": 3, "gamma": 0.5}, {"step_size": 2, "last_epoch": -1}]),
    (of.MultiStepLR, [{"milestones": [2, 4]}, {"milestones": [1, 1, 5], "gamma": 0.5}, {"milestones": []}]),
    (of.ConstantLR, [{}, {"factor": 0.5, "total_iters": 4}]),
    (of.LinearLR, [{}, {"start_factor": 0.1, "total_iters": 4}, {"end_factor": 0.5}]),
    (of.ExponentialLR, [{"gamma": 0.9}, {"gamma": 1.1}]),
    (of.PolynomialLR, [{}, {"total_iters": 4, "power": 2.0}]),
    (of.CosineAnnealingLR, [{"T_max": 4}, {"T_max": 5, "eta_min": 0.01}]),
    (of.CosineAnnealingWarmRestarts, [{"T_0": 2}, {"T_0": 2, "T_mult": 2}, {"T_0": 3, "eta_min": 0.01}]),
    (of.LambdaLR, [{"lr_lambda": half}, {"lr_lambda": [half]}]),
    (of.MultiplicativeLR, [{"lr_lambda": half}]),
    (
        of.CyclicLR,
        [
            {"base_lr": 0.01, "max_lr": 0.1},
            {"base_lr": 0.01, "max_lr": 0.1, "mode": "triangular2", "step_size_up": 2},
            {"base_lr": 0.01, "max_lr": 0.1, "mode": "exp_range", "gamma": 0.9, "step_size_down": 3},
            {"base_lr": 0.01, "max_lr": 0.1, "cycle_momentum": False},
            {"base_lr": 0.01, "max_lr": 0.1, "scale_fn": half, "scale_mode": "iterations"},
        ],
    ),
    (
        of.OneCycleLR,
        [
            {"max_lr": 0.1, "total_steps": 20},
            {"max_lr": 0.1, "epochs": 2, "steps_per_epoch": 5, "anneal_strategy": "linear"},
            {"max_lr": 0.1, "total_steps": 20, "three_phase": True, "cycle_momentum": False},
        ],
    ),
    # The state of the one of torch 2.9 has a function, which ckstore refuses.
    *([(_SWALR, _SWALR_OPTIONS)] if "state_dict" in vars(_SWALR) else []),
]
_PLATEAU: list[dict[str, Any]] = [
    *({}, {"patience": 0}, {"patience": 0, "mode": "max"}, {"patience": 0, "threshold_mode": "abs"}),
    *({"patience": 0, "cooldown": 2}, {"patience": 0, "min_lr": 0.05}, {"patience": 0, "min_lr": [0.01]}),
]
_TOGETHER: dict[str, MakeScheduler] = {
    "ChainedScheduler": lambda o: of.ChainedScheduler([of.ConstantLR(o), of.ExponentialLR(o, 0.9)], o),
    "SequentialLR": lambda o: of.SequentialLR(o, [of.LinearLR(o, total_iters=2), of.ExponentialLR(o, 0.9)], [2]),
    "SequentialLR, not switched yet": lambda o: of.SequentialLR(o, [of.LinearLR(o), of.StepLR(o, 2)], [5]),
    "SequentialLR of three": lambda o: of.SequentialLR(
        o, [of.ConstantLR(o), of.CosineAnnealingLR(o, 3), of.ExponentialLR(o, 0.5)], [1, 4]
    ),
    "ChainedScheduler of three": lambda o: of.ChainedScheduler(
        [of.LinearLR(o), of.StepLR(o, 2), of.CosineAnnealingLR(o, 4)], o
    ),
    "LambdaLR of an object with a state": lambda o: of.LambdaLR(o, Halving()),
    "LambdaLR of a lambda": lambda o: of.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    "MultiplicativeLR of an object with a state": lambda o: of.MultiplicativeLR(o, Halving()),
}


def _averaged(name: str, **options: Any) -> Run:
    def parts() -> Parts:
        made = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6))
        average = torch.optim.swa_utils.AveragedModel(made, **options)
        return {"model": made, "optimizer": torch.optim.SGD(made.parameters(), lr=0.1), "ema": average}

    def step(parts: Parts) -> object:
        loss = train(parts)
        parts["ema"].update_parameters(parts["model"])
        return loss, parts["ema"](torch.randn(5, 4)).detach()

    return Run(name, parts, step)


def _kept_by_hand() -> Run:
    def parts() -> Parts:
        made = model()
        shadow = {name: tensor.detach().clone() for name, tensor in made.named_parameters()}
        return {"model": made, "optimizer": torch.optim.SGD(made.parameters(), lr=0.1), "shadow": shadow}

    def step(parts: Parts) -> object:
        loss = train(parts)
        for name, tensor in parts["model"].named_parameters():
            parts["shadow"][name].lerp_(tensor.detach(), 0.1)
        return loss

    return Run("an average in a dict of tensors", parts, step)


def _with(kind: Any, options: dict[str, Any], optimizer: torch.optim.Optimizer) -> Any:
    return kind(optimizer, **options)


def rows() -> Iterator[Run]:
    """Yield the rows."""
    for kind, every in _OF:
        for options in every:
            make: MakeScheduler = partial(_with, kind, options)
            yield _run(f"{kind.__name__}({_options(options)})", make)
    for options in _PLATEAU:
        yield _plateau(**options)
    for name, make in _TOGETHER.items():
        yield _run(name, make)
    yield _run(
        "OneCycleLR of AdamW, whose betas it moves", lambda o: of.OneCycleLR(o, 0.1, total_steps=20), momentum=False
    )
    yield _run("CyclicLR of AdamW", lambda o: of.CyclicLR(o, 0.01, 0.1), momentum=False)
    average = torch.optim.swa_utils
    yield _averaged("AveragedModel")
    yield _averaged("AveragedModel(use_buffers=True)", use_buffers=True)
    yield _averaged("AveragedModel, exponential", multi_avg_fn=average.get_ema_multi_avg_fn(0.9))
    yield _averaged("AveragedModel, stochastic", multi_avg_fn=average.get_swa_multi_avg_fn())
    yield _averaged("AveragedModel, one tensor at a time", avg_fn=average.get_ema_avg_fn(0.9), use_buffers=True)
    yield _kept_by_hand()
