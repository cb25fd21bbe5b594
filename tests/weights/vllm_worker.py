"""A stand-in for a worker of vLLM with the engine of `examples/vllm_weights.py`.

It has the calls that the documentation of vLLM 0.25 describes, and a model that fuses weights.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from abc import ABC
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

_EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_weights.py"


class Model(torch.nn.Module):
    """A model that fuses two weights of a checkpoint into one parameter, as models of vLLM do."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(60, 20, dtype=torch.bfloat16), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(20), requires_grad=False)
        self.copied: list[str] = []

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights with the names of the checkpoint into the parameters."""
        for name, weight in weights:
            self.copied.append(name)
            target = self.norm if name == "norm.weight" else self.fused[:30] if name == "q.weight" else self.fused[30:]
            target.copy_(weight)


class _Info(ABC):  # noqa: B024 - as in vLLM
    """Facts for an engine."""


class _Engine(ABC):
    """The base class, with its own methods."""

    init_info_cls: type
    update_info_cls: type

    def __init__(self, model: Any) -> None:
        self.model = model

    def init(self, about: dict[str, Any]) -> None:
        self.init_transfer_engine(self.init_info_cls(**about))  # type: ignore[attr-defined]

    def update_weights(self, about: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**about))  # type: ignore[attr-defined]


@contextmanager
def engine_of(model: Any) -> Iterator[Any]:
    """Yield an engine of the example for a model."""
    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    for name, value in (
        ("WeightTransferEngine", _Engine), ("WeightTransferInitInfo", _Info), ("WeightTransferUpdateInfo", _Info),
    ):  # fmt: skip
        setattr(base, name, value)
    modules = {
        name: types.ModuleType(name) for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer")
    }
    spec = importlib.util.spec_from_file_location("vllm_weights", _EXAMPLE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(_EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {**modules, base.__name__: base, "vllm_weights": module}):
        spec.loader.exec_module(module)
        yield module.CkstoreEngine(model)
