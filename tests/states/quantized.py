"""Rows: modules that torch.ao quantizes, and those that learn to be quantized."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.ao import quantization as ao

from tests.states.table import Advice, Parts, Run

_HINT = "store value.dequantize(), or value.int_repr() with its scale and zero point"


def _layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def _convolutions() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())


def _prepared(
    make: Callable[[], nn.Sequential], backend: str, shape: tuple[int, ...], *, learn: bool
) -> Callable[[], Any]:
    def prepared() -> Any:
        made = nn.Sequential(ao.QuantStub(), *make(), ao.DeQuantStub())
        made.train(learn)
        made.qconfig = (ao.get_default_qat_qconfig if learn else ao.get_default_qconfig)(backend)
        return ao.prepare_qat(made) if learn else ao.prepare(made)

    return prepared


def _learns(name: str, make: Callable[[], Any], shape: tuple[int, ...]) -> Run:
    """Return a row whose observers see batches and whose weights are trained, if they are."""

    def parts() -> Parts:
        made = make()
        return {"model": made, **({"optimizer": torch.optim.SGD(made.parameters(), 0.1)} if made.training else {})}

    def step(parts: Parts) -> object:
        loss = parts["model"](torch.randn(shape)).square().sum()
        if "optimizer" in parts:
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
        return loss.detach()

    return Run(name, parts, step)


def _packed(value: Any) -> Any:
    """Return a state with quantized tensors as their numbers, scales and zero points."""
    if isinstance(value, torch.Tensor) and value.is_quantized:
        per_tensor = value.qscheme() == torch.per_tensor_affine
        how = (value.q_scale(), value.q_zero_point()) if per_tensor else _channels(value)
        return {"quantized": str(value.dtype), "numbers": value.int_repr(), "how": list(how)}
    if isinstance(value, dict):
        return _like(value, _packed)
    return tuple(map(_packed, value)) if isinstance(value, tuple) else str(value) if value is torch.qint8 else value


def _like(value: dict[Any, Any], change: Callable[[Any], Any]) -> dict[Any, Any]:
    """Return a dict of changed items; with the attributes of a state dict, which are the versions of its modules."""
    out: dict[Any, Any] = OrderedDict((key, change(item)) for key, item in value.items())
    vars(out).update(getattr(value, "__dict__", {}))
    return out


def _channels(value: torch.Tensor) -> tuple[Any, ...]:
    return value.q_per_channel_scales(), value.q_per_channel_zero_points(), value.q_per_channel_axis()


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and "quantized" in value:
        numbers, how = value["numbers"], value["how"]
        if len(how) == 2:
            return torch._make_per_tensor_quantized_tensor(numbers, *how)
        return torch._make_per_channel_quantized_tensor(numbers, *how)
    if isinstance(value, dict):
        return _like(value, _unpacked)
    return (
        tuple(map(_unpacked, value)) if isinstance(value, tuple) else torch.qint8 if value == "torch.qint8" else value
    )


_ADVICE = Advice(
    _HINT,
    lambda parts: {"model": _packed(parts["model"].state_dict())},
    lambda parts, loaded: parts["model"].load_state_dict(_unpacked(loaded["model"])),
)


def _is_quantized(name: str, make: Callable[[], Any], shape: tuple[int, ...]) -> Run:
    """Return a row that only computes; its weights are quantized tensors, which are refused."""

    def step(parts: Parts) -> object:
        return parts["model"](torch.randn(shape))

    return Run(name, lambda: {"model": make().eval()}, step, _ADVICE)


def _converted(make: Callable[[], nn.Sequential], backend: str, shape: tuple[int, ...]) -> Callable[[], Any]:
    def converted() -> Any:
        prepared = _prepared(make, backend, shape, learn=False)()
        prepared(torch.randn(shape))
        return ao.convert(prepared)

    return converted


def _dynamic(make: Callable[[], nn.Module], kind: type) -> Callable[[], Any]:
    return lambda: ao.quantize_dynamic(make(), {kind}, dtype=torch.qint8)


def rows() -> Iterator[Run]:
    """Yield the rows, for the backends that are built in."""
    flat, image = (5, 4), (1, 2, 4, 4)
    for backend in ("fbgemm", "qnnpack"):
        yield _learns(f"watched for {backend}", _prepared(_layers, backend, flat, learn=False), flat)
        yield _learns(
            f"watched for {backend}, convolutions", _prepared(_convolutions, backend, image, learn=False), image
        )
        yield _learns(f"learns to be quantized for {backend}", _prepared(_layers, backend, flat, learn=True), flat)
        yield _learns(
            f"learns to be quantized for {backend}, convolutions",
            _prepared(_convolutions, backend, image, learn=True),
            image,
        )
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return
    yield _is_quantized("quantize_dynamic of linear layers", _dynamic(_layers, nn.Linear), flat)
    yield _is_quantized("quantized linear layers", _converted(_layers, "fbgemm", flat), flat)
