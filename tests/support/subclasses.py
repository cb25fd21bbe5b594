"""A quantized tensor as libraries make them: a subclass of Tensor by torch's protocol, with a context of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import torch
from torch.utils._pytree import tree_map


class Mode(Enum):
    """How it rounds."""

    NEAREST = "nearest"
    DOWN = "down"


@dataclass(frozen=True)
class Rounding:
    """How its numbers were made."""

    mode: Mode
    kept: torch.dtype = torch.int8


class Rounded(torch.Tensor):
    """Numbers as bytes and one scale a row."""

    codes: torch.Tensor
    scale: torch.Tensor
    rounding: Rounding

    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, rounding: Rounding, dtype: torch.dtype) -> Self:
        how: Any = {"dtype": dtype, "device": codes.device, "requires_grad": False}
        made: Self = torch.Tensor._make_wrapper_subclass(cls, codes.shape, **how)
        made.codes, made.scale, made.rounding = codes, scale, rounding
        return made

    @classmethod
    def of(cls, values: torch.Tensor, mode: Mode = Mode.NEAREST) -> Rounded:
        """Return values as codes."""
        scale = values.detach().abs().amax(1, keepdim=True) / 127
        codes = values.detach() / scale
        codes = (codes.round() if mode is Mode.NEAREST else codes.floor()).to(torch.int8)
        return cls(codes, scale, Rounding(mode), values.dtype)

    def values(self) -> torch.Tensor:
        """Return what the codes stand for."""
        return (self.codes * self.scale).to(self.dtype)

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        context = {"rounding": self.rounding, "dtype": self.dtype, "device": self.codes.device}
        return ["codes", "scale"], context

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, shape: Any, strides: Any) -> Rounded:
        if context["device"] != parts["codes"].device:
            raise ValueError("the context says another device than that of the codes")
        return cls(parts["codes"], parts["scale"], context["rounding"], context["dtype"])

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Rounded({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        aten, kwargs = torch.ops.aten, kwargs or {}
        own = args[0]
        if function is aten.detach.default:
            return cls(own.codes.detach(), own.scale.detach(), own.rounding, own.dtype)
        if function is aten.clone.default:
            return cls(own.codes.clone(), own.scale.clone(), own.rounding, own.dtype)
        if function is aten.copy_.default:
            other = args[1]
            if type(other) is not cls or own.rounding != other.rounding:
                raise ValueError("rounded otherwise")
            own.codes.copy_(other.codes)
            own.scale.copy_(other.scale)
            return own

        def plain(value: Any) -> Any:
            return value.values() if isinstance(value, cls) else value

        return function(*tree_map(plain, args), **tree_map(plain, kwargs))


def rounded(module: torch.nn.Module, mode: Mode = Mode.NEAREST) -> torch.nn.Module:
    """Return a module whose linear layers have rounded weights."""
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            part.weight = torch.nn.Parameter(Rounded.of(part.weight, mode), requires_grad=False)
    return module
