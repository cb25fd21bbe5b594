"""Rows: the optimizers of pytorch-optimizer, torchao, bitsandbytes, schedulefree and transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed

from tests.states.runs import model
from tests.states.table import Parts, Run

_LOW_RANK = {"rank": 2, "update_proj_gap": 2, "scale": 0.25, "projection_type": "std"}
_NEEDS_CLOSURE = {"bsam", "lbfgs"}
_NEEDS_LOSS = {"alig"}
_NEEDS_MODEL = {"adammini", "lomo", "adalomo"}
_NEEDS_GRAPH = {"adahessian", "sophiah"}
_NEEDS_GROUPS = {"adago", "adamuon", "distributedmuon", "muon", "muonclip", "normuon"}
_NEEDS_RANKS = {"demo", "distributedmuon"}
_KEEP_OBJECTS = {"apollo", "conda", "fira", "galore", "scalableshampoo"}
"""Their state has objects of classes of their own."""
_NEEDS_MATRICES = {"spectralsphere"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "bsam": {"num_data": 10},
    "ranger21": {"num_iterations": 20},
    "alig": {"max_lr": 0.1},
}
_WITH: dict[str, list[dict[str, Any]]] = {
    "adabelief": [{"ams_bound": True}, {"rectify": True}],
    "adan": [{"weight_decay": 0.1}],
    "ademamix": [{"t_alpha_beta3": 5.0}],
    "came": [{"ams_bound": True}],
    "lamb": [{"pre_norm": True}],
    "madgrad": [{"momentum": 0.0}],
    "prodigy": [{"safeguard_warmup": True}],
    "ranger": [{"k": 2}],
    "scalableshampoo": [
        {"block_size": 4, "start_preconditioning_step": 2, "preconditioning_compute_steps": 1},
        {"graft_type": 1},
        {"skip_preconditioning_rank_lt": 2},
    ],
    "scion": [{"constraint": True}],
    "shampoo": [{"preconditioning_compute_steps": 2}],
    "soap": [{"precondition_frequency": 2}],
    "adafactor": [{"momentum": 0.9}],
    "lion": [{"use_gc": True}],
    "kron": [{"momentum_into_precond_update": False}],
}
_LOW_RANK_KINDS = ("galore", "apollo", "fira", "conda", "alice", "sara")


def _library() -> Any:
    return importlib.import_module("pytorch_optimizer")


def _matrices() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(6, 3, bias=False))


def _one_rank() -> None:
    """Make the process group that some want, of this process alone; it stays until the process ends."""
    if not distributed.is_initialized():
        group: Any = distributed
        group.init_process_group("gloo", store=group.HashStore(), rank=0, world_size=1)


def of_pytorch_optimizer(kind: str, name: str = "", **options: Any) -> Run:
    """Return the row of an optimizer of that library, by the name that it has there."""
    own = {"lr": 0.01, **_OPTIONS.get(kind, {}), **options}
    if kind == "alig":
        del own["lr"]

    def parts() -> Parts:
        made: Any = _matrices() if kind in _NEEDS_MATRICES else model()
        if kind in _NEEDS_RANKS:
            _one_rank()
        given: Any = made.parameters()
        if kind in _NEEDS_MODEL:
            given = made
        elif kind in _NEEDS_GROUPS:
            held = list(made.parameters())
            given = [
                {"params": [p for p in held if p.ndim == 2], "use_muon": True},
                {"params": [p for p in held if p.ndim < 2], "use_muon": False},
            ]
        return {"model": made, "optimizer": _library().load_optimizer(kind)(given, **own)}

    return Run(name or _named("pytorch-optimizer", kind, options), parts, _step_of(kind), allow=kind in _KEEP_OBJECTS)


def _step_of(kind: str) -> Callable[[Parts], object]:
    if kind in {"lomo", "adalomo"}:
        return _fused_step
    if kind in _NEEDS_LOSS:
        return _told_step
    return _closure_step if kind in _NEEDS_CLOSURE else _graph_step if kind in _NEEDS_GRAPH else plain_step


def _named(library: str, kind: str, options: dict[str, Any]) -> str:
    words = ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in options.items())
    return f"{library}: {kind}({words})"


def plain_step(parts: Parts) -> object:
    """Do a step, with the optimizer told that it trains where it wants that."""
    optimizer = parts["optimizer"]
    if hasattr(optimizer, "train"):
        optimizer.train()
    optimizer.zero_grad()
    loss = _loss(parts)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _loss(parts: Parts) -> torch.Tensor:
    wide = next(parts["model"].parameters()).shape[-1]
    loss: torch.Tensor = parts["model"](torch.randn(5, wide)).float().square().mean()
    return loss


def _graph_step(parts: Parts) -> object:
    parts["optimizer"].zero_grad()
    loss = _loss(parts)
    loss.backward(create_graph=True)
    parts["optimizer"].step()
    parts["optimizer"].zero_grad(set_to_none=True)
    return loss.detach()


def _closure_step(parts: Parts) -> object:
    """Do a step that computes the loss by itself."""
    optimizer, batch = parts["optimizer"], torch.randn(5, next(parts["model"].parameters()).shape[-1])
    if hasattr(optimizer, "train"):
        optimizer.train()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = parts["model"](batch).square().mean()
        loss.backward()
        return loss

    loss = closure().detach()
    optimizer.step(closure)
    return loss


def _told_step(parts: Parts) -> object:
    """Do a step of an optimizer that wants to be told the loss as a number."""
    parts["optimizer"].zero_grad()
    loss = _loss(parts)
    loss.backward()
    parts["optimizer"].step(lambda: float(loss))
    return loss.detach()


def _fused_step(parts: Parts) -> object:
    loss = _loss(parts)
    parts["optimizer"].fused_backward(loss, 0.01)
    return loss.detach()


def _low_rank(kind: str, **options: Any) -> Run:
    """Return the row of an optimizer that keeps what projects gradients to fewer dimensions."""

    def parts() -> Parts:
        made = model()
        matrices = [p for p in made.parameters() if p.ndim == 2]
        vectors = [p for p in made.parameters() if p.ndim < 2]
        groups = [{"params": matrices, **_LOW_RANK, **options}, {"params": vectors}]
        return {"model": made, "optimizer": _library().load_optimizer(kind)(groups, lr=0.01)}

    words = _named("pytorch-optimizer", kind, {"rank": 2, **options})
    return Run(words, parts, plain_step, allow=kind in _KEEP_OBJECTS)


def _wrapped(name: str, make: Callable[[Any, Any], Any], step: Callable[[Parts], object] = plain_step) -> Run:
    """Return the row of an optimizer around another one; `make` gets the library and a model."""

    def parts() -> Parts:
        made = model()
        return {"model": made, "optimizer": make(_library(), made)}

    return Run(f"pytorch-optimizer: {name}", parts, step)


def _adamw(made: Any) -> Any:
    return torch.optim.AdamW(made.parameters(), lr=0.01)


_WRAPPERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Parts], object]]] = {
    "Lookahead": (lambda po, made: po.Lookahead(_adamw(made), k=2), plain_step),
    "Lookahead, pulling back": (
        lambda po, made: po.Lookahead(_adamw(made), k=2, pullback_momentum="pullback"),
        plain_step,
    ),
    "TRAC": (lambda po, made: po.TRAC(_adamw(made)), plain_step),
    "OrthoGrad": (lambda po, made: po.OrthoGrad(_adamw(made)), plain_step),
    "ScheduleFreeWrapper": (lambda po, made: po.ScheduleFreeWrapper(_adamw(made)), plain_step),
    "SAM": (lambda po, made: po.SAM(made.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9), _closure_step),
    "FriendlySAM": (
        lambda po, made: po.FriendlySAM(made.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9),
        _closure_step,
    ),
    "LookSAM": (lambda po, made: po.LookSAM(made.parameters(), torch.optim.SGD, k=2, lr=0.1), _closure_step),
}


def _wide() -> Any:
    return torch.nn.Linear(64, 64)


def _eight_bits(library: str, name: str, make: Callable[[Any], Any]) -> Run:
    """Return a row with a matrix that is large enough for the optimizer to quantize what it keeps of it."""

    def parts() -> Parts:
        made = _wide()
        return {"model": made, "optimizer": make(made.parameters())}

    return Run(f"{library}: {name}", parts, plain_step)


def _of(library: str, module: str, kind: str, **options: Any) -> Run:
    def make(parameters: Any) -> Any:
        return getattr(importlib.import_module(module), kind)(parameters, **{"lr": 0.01, **options})

    words = ", ".join(f"{name}={value}" for name, value in options.items())
    return _eight_bits(library, f"{kind}({words})", make)


_TORCHAO = ("Adam8bit", "AdamW8bit", "Adam4bit", "AdamW4bit", "AdamFp8", "AdamWFp8", "_AdamW")
_BITSANDBYTES = (
    *("AdEMAMix", "AdEMAMix8bit", "Adagrad", "Adagrad32bit", "Adagrad8bit", "Adam", "Adam32bit", "Adam8bit"),
    *("AdamW", "AdamW32bit", "AdamW8bit", "LAMB", "LAMB8bit", "LARS", "LARS8bit", "Lion", "Lion32bit", "Lion8bit"),
    *("PagedAdam", "PagedAdam8bit", "PagedAdamW", "PagedAdamW8bit", "PagedLion", "PagedLion8bit", "PagedAdEMAMix8bit"),
    *("PytorchLARS", "RMSprop", "RMSprop8bit", "SGD", "SGD32bit", "SGD8bit"),
)
_SCHEDULEFREE = ("AdamWScheduleFree", "AdamWScheduleFreePaper", "RAdamScheduleFree", "SGDScheduleFree")


def _schedulefree_closure(kind: str) -> Run:
    def parts() -> Parts:
        made = model()
        made_of = getattr(importlib.import_module("schedulefree"), kind)
        return {"model": made, "optimizer": made_of(made.parameters(), lr=0.01)}

    return Run(f"schedulefree: {kind}", parts, _closure_step)


def rows() -> Iterator[Run]:
    """Yield the rows."""
    for kind in sorted(_library().get_supported_optimizers()):
        yield of_pytorch_optimizer(kind)
        for options in _WITH.get(kind, []):
            yield of_pytorch_optimizer(kind, **options)
    for kind in _LOW_RANK_KINDS:
        yield _low_rank(kind)
    for how in ("reverse_std", "right", "left", "full"):
        yield _low_rank("galore", projection_type=how)
    for name, (make, step) in _WRAPPERS.items():
        yield _wrapped(name, make, step)
    for kind in _TORCHAO:
        yield _of("torchao", "torchao.optim.adam", kind)
    yield _of("torchao", "torchao.optim.adam", "AdamW8bit", bf16_stochastic_round=True)
    yield _of("torchao", "torchao.optim.adam", "AdamW8bit", block_size=64)
    for kind in _BITSANDBYTES:
        momentum = {"momentum": 0.9} if "SGD" in kind or "LARS" in kind else {}
        yield _of("bitsandbytes", "bitsandbytes.optim", kind, **momentum)
    for kind in _SCHEDULEFREE:
        yield _of("schedulefree", "schedulefree", kind)
    for kind in ("AdamWScheduleFreeClosure", "RAdamScheduleFreeClosure", "SGDScheduleFreeClosure"):
        yield _schedulefree_closure(kind)
    yield _of("transformers", "transformers.optimization", "Adafactor", relative_step=False)
    yield _of("transformers", "transformers.optimization", "Adafactor", lr=None)
