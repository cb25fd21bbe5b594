"""Rows: layers of torch that have a state, what changes their parameters, and what wraps them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.states.odd_modules import (
    Adds,
    Buffers,
    Extra,
    Growing,
    OwnState,
    Parametered,
    Parted,
    Prefixed,
    Real,
    Recomputed,
    Renames,
    Symmetric,
    Tied,
)
from tests.states.table import Advice, Parts, Run
from tests.support.torch_versions import compiled

Batch = Callable[[], tuple[Any, ...]]


def _total(out: Any) -> torch.Tensor:
    """Return one number of what a module gave."""
    if isinstance(out, torch.Tensor):
        return out.square().sum()
    return torch.stack([_total(part) for part in out if part is not None]).sum()


def _run(name: str, make: Callable[[], Any], batch: Batch) -> Run:
    """Return a row with a module that SGD trains, where it has parameters."""

    def parts() -> Parts:
        made = make()
        parameters = [p for p in made.parameters() if p.requires_grad]
        return {
            "model": made,
            **({"optimizer": torch.optim.SGD(parameters, lr=0.01, momentum=0.9)} if parameters else {}),
        }

    def step(parts: Parts) -> object:
        loss = _total(parts["model"](*batch()))
        if "optimizer" in parts:
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
        return loss.detach()

    return Run(name, parts, step)


def _plain(*shape: int) -> Batch:
    return lambda: (torch.randn(shape),)


def _whole(high: int, *shape: int) -> Batch:
    return lambda: (torch.randint(high, shape),)


def _channels_last() -> Any:
    made: Any = nn.Conv2d(2, 4, 3)
    return made.to(memory_format=torch.channels_last)


def _buffer_of(dtype: torch.dtype) -> Any:
    return Buffers(a=torch.randn(16).mul(9).relu().to(dtype))


_LAYERS: dict[str, tuple[Callable[[], Any], Batch]] = {
    "Linear": (lambda: nn.Linear(4, 3), _plain(5, 4)),
    "Linear without bias": (lambda: nn.Linear(4, 3, bias=False), _plain(5, 4)),
    "Bilinear": (lambda: nn.Bilinear(4, 3, 2), lambda: (torch.randn(5, 4), torch.randn(5, 3))),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3), _plain(2, 2, 6)),
    "Conv2d": (lambda: nn.Conv2d(2, 4, 3, groups=2), _plain(2, 2, 5, 5)),
    "Conv2d, channels last": (
        _channels_last,
        _plain(2, 2, 5, 5),
    ),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), _plain(1, 1, 3, 3, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 3), _plain(2, 2, 6)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 3), _plain(2, 2, 4, 4)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(1, 2, 2), _plain(1, 1, 3, 3, 3)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), _plain(5, 4)),
    "BatchNorm1d without running statistics": (lambda: nn.BatchNorm1d(4, track_running_stats=False), _plain(5, 4)),
    "BatchNorm1d, all of the past": (lambda: nn.BatchNorm1d(4, momentum=None), _plain(5, 4)),
    "BatchNorm1d, not affine": (lambda: nn.BatchNorm1d(4, affine=False), _plain(5, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), _plain(2, 3, 4, 4)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), _plain(2, 2, 2, 2, 2)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), _plain(2, 3, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), _plain(2, 3, 4, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), _plain(5, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), _plain(5, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(4), _plain(5, 4)),
    "PReLU": (lambda: nn.PReLU(4), _plain(5, 4)),
    "Embedding": (lambda: nn.Embedding(7, 3, padding_idx=0), _whole(7, 2, 3)),
    "Embedding with max_norm, which it changes as it looks": (
        lambda: nn.Embedding(7, 3, max_norm=1.0),
        _whole(7, 2, 3),
    ),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 3, mode="max"), _whole(7, 2, 3)),
    "RNN": (lambda: nn.RNN(4, 3, num_layers=2), _plain(5, 4)),
    "LSTM": (lambda: nn.LSTM(4, 3), _plain(5, 4)),
    "LSTM, both ways": (lambda: nn.LSTM(4, 3, bidirectional=True, num_layers=2), _plain(5, 4)),
    "LSTM with a projection": (lambda: nn.LSTM(4, 3, proj_size=2), _plain(5, 4)),
    "GRU": (lambda: nn.GRU(4, 3, batch_first=True), _plain(2, 5, 4)),
    "RNNCell": (lambda: nn.RNNCell(4, 3), _plain(5, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), _plain(5, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 3), _plain(5, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), lambda: (torch.randn(3, 2, 4),) * 3),
    "MultiheadAttention, other keys": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
        lambda: (torch.randn(3, 2, 4), torch.randn(3, 2, 3), torch.randn(3, 2, 5)),
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), _plain(3, 2, 4)),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(4, 2, 8),
        lambda: (torch.randn(3, 2, 4), torch.randn(3, 2, 4)),
    ),
    "Transformer": (
        lambda: nn.Transformer(4, 2, 1, 1, 8),
        lambda: (torch.randn(3, 2, 4), torch.randn(3, 2, 4)),
    ),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 7, [2]),
        lambda: (torch.randn(5, 4), torch.randint(7, (5,))),
    ),
    "CrossEntropyLoss with weights": (
        lambda: nn.CrossEntropyLoss(weight=torch.rand(3)),
        lambda: (torch.randn(5, 3), torch.randint(3, (5,))),
    ),
    "FractionalMaxPool2d with its samples": (
        lambda: Buffers(samples=torch.rand(1, 2, 2)),
        _plain(2, 3),
    ),
    "LazyLinear": (lambda: nn.LazyLinear(3), _plain(5, 4)),
    "LazyConv2d": (lambda: nn.LazyConv2d(3, 2), _plain(2, 2, 4, 4)),
    "LazyConvTranspose1d": (lambda: nn.LazyConvTranspose1d(3, 2), _plain(2, 2, 4)),
}


def _pruned(how: Callable[[nn.Module], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        layer = nn.Linear(4, 3)
        how(layer)
        return layer

    return make


def _symmetric() -> nn.Module:
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def _frozen() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))
    made[0].requires_grad_(requires_grad=False)
    return made


def _scripted() -> Any:
    return torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.BatchNorm1d(3)))


def _compiled() -> Any:
    return compiled(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), backend="eager")


_CHANGED: dict[str, tuple[Callable[[], Any], Batch]] = {
    "weight_norm": (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), _plain(5, 4)),
    "spectral_norm": (lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), _plain(5, 4)),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(4, 4)), _plain(5, 4)),
    "orthogonal, cayley": (lambda: parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"), _plain(5, 4)),
    "weight_norm of the hooks": (lambda: nn.utils.weight_norm(nn.Linear(4, 3)), _plain(5, 4)),
    "spectral_norm of the hooks": (lambda: nn.utils.spectral_norm(nn.Linear(4, 3)), _plain(5, 4)),
    "a parametrization of its own": (_symmetric, _plain(5, 4)),
    "pruned by size": (_pruned(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)), _plain(5, 4)),
    "pruned by chance": (_pruned(lambda layer: prune.random_unstructured(layer, "weight", 0.5)), _plain(5, 4)),
    "pruned by rows": (_pruned(lambda layer: prune.ln_structured(layer, "weight", 0.5, n=2, dim=0)), _plain(5, 4)),
    "extra state, a dict": (lambda: Extra(dict, dict), _plain(5, 4)),
    "extra state, a list": (lambda: Extra(lambda held: held["scales"], lambda held: {"scales": held}), _plain(5, 4)),
    "extra state, a tensor that grows": (
        lambda: Extra(lambda held: torch.tensor(held["scales"]), lambda held: {"scales": held.tolist()}),
        _plain(5, 4),
    ),
    "extra state, bytes": (lambda: Extra(lambda held: json.dumps(held).encode(), json.loads), _plain(5, 4)),
    "extra state, a BytesIO": (
        lambda: Extra(lambda held: io.BytesIO(json.dumps(held).encode()), lambda held: json.loads(held.read())),
        _plain(5, 4),
    ),
    "extra state, a string": (lambda: Extra(json.dumps, json.loads), _plain(5, 4)),
    "tied weights": (Tied, _whole(5, 2, 3)),
    "hooks that rename": (Renames, _plain(5, 4)),
    "hooks that add a tensor": (Adds, _plain(5, 4)),
    "a queue that grows": (Growing, _plain(5, 4)),
    "a state of its own kind": (OwnState, _plain(5, 4)),
    "a part frozen": (_frozen, _plain(5, 4)),
    "ModuleDict and ModuleList": (Parted, _plain(5, 4)),
    "ParameterDict and ParameterList": (Parametered, _plain(5, 4)),
    "DataParallel": (lambda: nn.DataParallel(nn.Linear(4, 3)), _plain(5, 4)),
    "a wrapper with module.": (lambda: Prefixed(Prefixed(nn.Linear(4, 3))), _plain(5, 4)),
    "torch.compile": (_compiled, _plain(5, 4)),
    "torch.jit.script": (_scripted, _plain(5, 4)),
    "torch.fx": (lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 3), nn.Tanh())), _plain(5, 4)),
    "bfloat16": (lambda: nn.Linear(4, 3).bfloat16(), lambda: (torch.randn(5, 4).bfloat16(),)),
    "float64": (lambda: nn.Linear(4, 3).double(), lambda: (torch.randn(5, 4).double(),)),
    "complex64": (lambda: Real(nn.Linear(4, 3).to(torch.complex64)), lambda: (torch.randn(5, 4).to(torch.complex64),)),
    "a checkpointed part": (Recomputed, _plain(5, 4)),
}


_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
)
_EMPTY_LAYER = "run a lazy module once before saving"


def _lazy_before_its_first_step() -> Run:
    """Return the row of a lazy module that has not seen a batch: the hint is to let it see one."""

    def warm(parts: Parts) -> Parts:
        parts["model"](torch.randn(5, 4))
        return parts

    def step(parts: Parts) -> object:
        return torch.zeros(1)

    advice = Advice(_EMPTY_LAYER, warm, lambda parts, loaded: parts["model"].load_state_dict(loaded["model"]))
    return Run("LazyLinear that has not seen a batch", lambda: {"model": nn.LazyLinear(3)}, step, advice)


def rows() -> Iterator[Run]:
    """Yield the rows."""
    for name, (make, batch) in {**_LAYERS, **_CHANGED}.items():
        yield _run(name, make, batch)
    for dtype in _DTYPES:
        if dtype in (torch.uint16, torch.uint32):  # they cannot add
            continue
        yield _run(f"a buffer of {dtype}", partial(_buffer_of, dtype), _plain(2))
