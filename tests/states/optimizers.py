"""Rows: every optimizer of torch, with each of its options, in each of its implementations; and what groups may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.states.runs import loss_of, model, train, with_optimizer
from tests.states.table import Parts, Run

_DECAY = {"weight_decay": 0.1}
_UP = {"maximize": True}
_ADAM: list[dict[str, Any]] = [
    {},
    {"amsgrad": True},
    {"betas": (0.8, 0.9)},
    {"eps": 1e-4},
    _DECAY,
    _UP,
    {"amsgrad": True, **_UP},
]
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "Adadelta": [{}, {"rho": 0.8}, _DECAY, _UP],
    "Adafactor": [{}, {"beta2_decay": -0.5}, {"d": 2.0}, _DECAY, _UP],
    "Adagrad": [{}, {"lr_decay": 0.1}, {"initial_accumulator_value": 0.5}, _DECAY, _UP],
    "Adam": [*_ADAM, {"decoupled_weight_decay": True, **_DECAY}],
    "AdamW": _ADAM,
    "Adamax": [{}, {"betas": (0.8, 0.9)}, _DECAY, _UP],
    "ASGD": [{}, {"lambd": 0.1}, {"t0": 2.0}, _DECAY, _UP],
    "NAdam": [{}, {"momentum_decay": 0.1}, {"decoupled_weight_decay": True, **_DECAY}, _UP],
    "RAdam": [{}, {"decoupled_weight_decay": True, **_DECAY}, _UP],
    "RMSprop": [{}, {"momentum": 0.9}, {"centered": True}, {"centered": True, "momentum": 0.9}, _DECAY, _UP],
    "Rprop": [{}, {"etas": (0.4, 1.3)}, {"step_sizes": (1e-5, 1.0)}, _UP],
    "SGD": [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.5},
        _DECAY,
        _UP,
    ],
}
_FUSED = {"Adagrad", "Adam", "AdamW", "SGD"}
_OTHERS: dict[str, list[dict[str, Any]]] = {
    "LBFGS": [{}, {"max_iter": 3}, {"history_size": 2}, {"line_search_fn": "strong_wolfe"}, {"tolerance_grad": 1e-3}],
}


def _name(kind: str, options: dict[str, Any]) -> str:
    return f"{kind}({', '.join(f'{name}={value}' for name, value in options.items())})"


def _run(kind: str, options: dict[str, Any]) -> Run:
    def make(parameters: Any) -> Any:
        return getattr(torch.optim, kind)(parameters, lr=0.01, **options)

    return Run(_name(kind, options), with_optimizer(make), train)


def _of_torch() -> Iterator[Run]:
    for kind, every in _OPTIONS.items():
        ways = [{"foreach": False}, {"foreach": True}, *([{"fused": True}] if kind in _FUSED else [])]
        for options in every:
            yield from (_run(kind, {**options, **way}) for way in ways)
    for kind, every in _OTHERS.items():
        yield from (_run(kind, options) for options in every)


def _matrices() -> Parts:
    made = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(6, 3, bias=False))
    return {"model": made, "optimizer": None}


def _muon(**options: Any) -> Run:
    def parts() -> Parts:
        made = _matrices()
        return {**made, "optimizer": torch.optim.Muon(made["model"].parameters(), lr=0.01, **options)}

    return Run(_name("Muon", options), parts, train)


def _sparse(name: str, make: Any) -> Run:
    """Return a row with gradients that are sparse."""

    def parts() -> Parts:
        made = torch.nn.EmbeddingBag(6, 3, sparse=True)
        return {"model": made, "optimizer": make(made.parameters())}

    def step(parts: Parts) -> object:
        parts["optimizer"].zero_grad()
        loss = parts["model"](torch.randint(6, (2, 3))).square().sum()
        loss.backward()
        parts["optimizer"].step()
        return loss.detach()

    return Run(name, parts, step)


def _groups(name: str, make: Any) -> Run:
    """Return a row whose optimizer is made of a model."""

    def parts() -> Parts:
        made = model()
        return {"model": made, "optimizer": make(made)}

    return Run(name, parts, train)


def _typed(kind: str, dtype: torch.dtype) -> Run:
    def parts() -> Parts:
        made = model().to(dtype)
        return {"model": made, "optimizer": getattr(torch.optim, kind)(made.parameters(), lr=0.01)}

    def step(parts: Parts) -> object:
        parts["optimizer"].zero_grad()
        loss = parts["model"](torch.randn(5, 4).to(dtype)).abs().square().mean()
        loss.backward()
        parts["optimizer"].step()
        return loss.detach()

    # NAdam keeps a product in float32, of which torch makes the parameter's dtype at a load.
    return Run(f"{kind} of {dtype}", parts, step, exact=kind == "NAdam" and dtype.is_floating_point)


def _several(name: str, container: type) -> Run:
    """Return a row with an optimizer for each layer, in a list or a dict."""

    def parts() -> Parts:
        made = model()
        optimizers = [torch.optim.AdamW(made[0].parameters()), torch.optim.SGD(made[2].parameters(), momentum=0.9)]
        return {
            "model": made,
            "optimizer": container(zip("ab", optimizers, strict=True)) if container is dict else optimizers,
        }

    def step(parts: Parts) -> object:
        held = parts["optimizer"]
        loss = loss_of(parts)
        loss.backward()
        for optimizer in held.values() if isinstance(held, dict) else held:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Run(name, parts, step)


def _scaled(name: str, **options: Any) -> Run:
    def parts() -> Parts:
        made = model()
        optimizer = torch.optim.AdamW(made.parameters())
        return {"model": made, "optimizer": optimizer, "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, **options)}

    def step(parts: Parts) -> object:
        parts["optimizer"].zero_grad()
        loss = loss_of(parts)
        parts["scaler"].scale(loss).backward()
        parts["scaler"].step(parts["optimizer"])
        parts["scaler"].update()
        return loss.detach(), parts["scaler"].get_scale()

    return Run(name, parts, step)


def _frozen(made: Any) -> Any:
    made[0].requires_grad_(False)
    return torch.optim.AdamW(made.parameters())


def _added(made: Any) -> Any:
    optimizer = torch.optim.Adam(made[0].parameters(), lr=0.01)
    optimizer.add_param_group({"params": made[2].parameters(), "lr": torch.tensor(0.1), "note": ("head", 1)})
    return optimizer


def _hooked(made: Any) -> Any:
    optimizer = torch.optim.AdamW(made.parameters())
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": "kept"})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {key: item for key, item in state.items() if key != "note"}
    )
    return optimizer


def rows() -> Iterator[Run]:
    """Yield the rows."""
    yield from _of_torch()
    muons: tuple[dict[str, Any], ...] = (
        {},
        {"nesterov": False},
        {"ns_steps": 3},
        {"adjust_lr_fn": "match_rms_adamw"},
        {"momentum": 0.5},
    )
    for options in muons if hasattr(torch.optim, "Muon") else ():  # torch has it since 2.9
        yield _muon(**options)
    yield _sparse("SparseAdam", torch.optim.SparseAdam)
    yield _sparse("SparseAdam(maximize=True)", lambda parameters: torch.optim.SparseAdam(parameters, maximize=True))
    yield _sparse("Adagrad of sparse gradients", torch.optim.Adagrad)
    yield _sparse("SGD of sparse gradients", lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    for kind in ("AdamW", "SGD", "RMSprop", "NAdam"):
        yield from (_typed(kind, dtype) for dtype in (torch.bfloat16, torch.float64, torch.complex64))
    tensor_lr = lambda made: torch.optim.AdamW(made.parameters(), lr=torch.tensor(0.01))  # noqa: E731
    yield _groups("AdamW whose lr is a tensor", tensor_lr)
    yield _groups("AdamW of named parameters", lambda made: torch.optim.AdamW(made.named_parameters()))
    yield _groups("AdamW, a part frozen", _frozen)
    yield _groups("Adam, a group added later", _added)
    yield _groups("AdamW with hooks on its state", _hooked)
    yield _groups(
        "SGD, one group a parameter", lambda made: torch.optim.SGD([{"params": [p]} for p in made.parameters()], lr=0.1)
    )
    yield _groups(
        "Adam, differentiable",
        lambda made: torch.optim.Adam(made.parameters(), betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False),
    )
    yield _several("optimizers in a list", list)
    yield _several("optimizers in a dict", dict)
    yield _scaled("GradScaler")
    yield _scaled("GradScaler(growth_interval=2)", growth_interval=2)
    yield _scaled("GradScaler(enabled=False)", enabled=False)
