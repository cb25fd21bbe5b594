"""A worker of vLLM with the engine of `examples/vllm_weights.py`.

The engine's base class and the layerwise reloading are stand-ins that behave as those of vLLM 0.25 to 0.33. With
``CKSTORE_VLLM=FOLDER``, they are those of vLLM, from a wheel that was unpacked there (``make vllm``). The rest of vLLM
needs a GPU and is replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
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
_BASE = "vllm.distributed.weight_transfer.base"
_RELOAD = "vllm.model_executor.model_loader.reload"
REAL = Path(os.environ["CKSTORE_VLLM"]).absolute() if "CKSTORE_VLLM" in os.environ else None
"""The folder with the modules of vLLM, or None for stand-ins."""


class _Linear(torch.nn.Module):
    """A layer that fuses two weights of a checkpoint, as layers of vLLM do.

    With `converts`, vLLM changes its values after they are loaded, as it does for quantized layers.
    """

    def __init__(self, *, converts: bool, quant_method: type) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(60, 20, dtype=torch.bfloat16), requires_grad=False)
        self.weight.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        self.quant_method = quant_method() if converts else None

    def weight_loader(self, param: torch.nn.Parameter, loaded_weight: torch.Tensor, shard_id: int) -> None:
        """Load one of the two weights into the parameter."""
        param.data[30 * shard_id : 30 * shard_id + 30].copy_(loaded_weight)


class Model(torch.nn.Module):
    """A model of two layers. Make it in a `vllm` context, and give it to `engine_of`."""

    def __init__(self, *, converts: bool = False) -> None:
        super().__init__()
        base = importlib.import_module("vllm.model_executor.layers.quantization.base_config")

        class Negating(base.QuantizeMethodBase):  # type: ignore[misc, name-defined]
            def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
                layer.weight.data.neg_()  # type: ignore[operator]

        self.linear = _Linear(converts=converts, quant_method=Negating)
        self.norm = torch.nn.Module()
        self.norm.weight = torch.nn.Parameter(torch.zeros(20), requires_grad=False)
        self.copied: list[str] = []
        importlib.import_module(_RELOAD).record_metadata_for_reloading(self)
        if converts:
            self.linear.quant_method.process_weights_after_loading(self.linear)  # type: ignore[union-attr]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load weights with the names of the checkpoint."""
        for name, weight in weights:
            self.copied.append(name)
            layer = self.norm if name == "norm.weight" else self.linear
            param: Any = layer.weight
            shard = () if layer is self.norm else (("q.weight", "k.weight").index(name),)
            getattr(param, "weight_loader", _default_weight_loader)(param, weight, *shard)

    def serves(self, weights: dict[str, torch.Tensor]) -> bool:
        """Whether the model computes with these weights."""
        fused = torch.cat([weights["q.weight"], weights["k.weight"]]).bfloat16()
        own: Any = self.linear.weight
        return torch.equal(-own if self.linear.quant_method else own, fused) and torch.equal(
            self.norm.weight,  # type: ignore[arg-type]
            weights["norm.weight"],
        )


def _default_weight_loader(param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> None:
    param.data.copy_(loaded_weight)


class _Info(ABC):  # noqa: B024 - as in vLLM
    """Facts for an engine."""


class _Engine(ABC):
    """The base class, with its own methods."""

    init_info_cls: type
    update_info_cls: type

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        del config, device
        self.model = model
        self.model_config = vllm_config.model_config

    def parse_init_info(self, about: dict[str, Any]) -> Any:
        return self.init_info_cls(**about)

    def update_weights(self, about: dict[str, Any]) -> None:
        self.receive_weights(self.update_info_cls(**about))  # type: ignore[attr-defined]


_kernel_tensors: dict[torch.nn.Module, torch.nn.Parameter] = {}


def _initialize_layerwise_reload(model: torch.nn.Module) -> None:
    """Give each layer a parameter without values."""
    for layer in model.modules():
        param = layer._parameters.get("weight")
        if param is not None:
            _kernel_tensors[layer] = param
            layer.weight = torch.nn.Parameter(torch.full_like(param, torch.nan), requires_grad=False)
            layer.weight.__dict__.update(param.__dict__)


def _finalize_layerwise_reload(model: torch.nn.Module, model_config: object) -> None:
    """Convert each layer that was loaded, wholly or in part, and copy its values to the parameter of the model."""
    del model_config
    for layer in model.modules():
        kernel, param = _kernel_tensors.pop(layer, None), layer._parameters.get("weight")
        if kernel is None or param is None:
            continue
        if not param.isnan().all():
            if quant_method := getattr(layer, "quant_method", None):
                quant_method.process_weights_after_loading(layer)
            kernel.data.copy_(param)
        layer.weight = kernel


def _modules() -> dict[str, dict[str, Any]]:
    """Return the names in each module of vLLM that the engine or the modules of vLLM import."""

    class VllmLogger(logging.Logger):
        warning_once = logging.Logger.warning

    found: dict[str, dict[str, Any]] = {
        "vllm.config": {"ModelConfig": object, "VllmConfig": object},
        "vllm.config.parallel": {"ParallelConfig": object},
        "vllm.config.weight_transfer": {"WeightTransferConfig": object},
        "vllm.logger": {"init_logger": VllmLogger},
        "vllm.model_executor.layers.attention": {
            "is_deferred_attention_layer": lambda _: False,
            "Attention": type("Attention", (), {}),
            "MLAAttention": type("MLAAttention", (), {}),
        },
        "vllm.model_executor.layers.quantization.base_config": {
            "QuantizeMethodBase": type("QuantizeMethodBase", (), {})
        },
        "vllm.model_executor.layers.quantization.online.fp8": {"OnlineLinearBase": type("OnlineLinearBase", (), {})},
        "vllm.model_executor.layers.quantization.online.moe_base": {"OnlineMoEMethodBase": type("MoE", (), {})},
        "vllm.model_executor.model_loader.utils": {"online_quantization_timing_context": None},
        "vllm.model_executor.model_loader.weight_utils": {"default_weight_loader": _default_weight_loader},
        "vllm.model_executor.model_loader.reload.torchao_decorator": {
            "set_torchao_reload_attrs": None,
            "support_quantized_model_reload_from_hp_weights": None,
        },
    }
    if REAL is not None:
        found |= {name.rpartition(".")[0]: {} for name in (_BASE, _RELOAD)}
    else:
        found[_BASE] = {
            "WeightTransferEngine": _Engine,
            "WeightTransferInitInfo": _Info,
            "WeightTransferUpdateInfo": _Info,
        }
        found[_RELOAD] = {
            "record_metadata_for_reloading": lambda _: None,
            "initialize_layerwise_reload": _initialize_layerwise_reload,
            "finalize_layerwise_reload": _finalize_layerwise_reload,
        }
    return found


@contextmanager
def vllm() -> Iterator[None]:
    """Make the modules of vLLM that the engine needs importable."""
    modules: dict[str, types.ModuleType] = {}
    for name, members in _modules().items():
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            package = ".".join(parts[:count])
            module = modules.setdefault(package, types.ModuleType(package))
            # The real modules are found below the packages, whose own code is not run.
            module.__path__ = [] if REAL is None else [str(REAL.joinpath(*parts[:count]))]
        vars(modules[name]).update(members)
    if REAL is not None:  # the code of this package is run
        del modules[_RELOAD]
    sys.modules.update(modules)
    try:
        with mock.patch.object(torch.accelerator, "synchronize"):  # there is no accelerator
            yield
    finally:
        # Modules of torch that were imported meanwhile must remain, since they cannot be imported again.
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]


@contextmanager
def engine_of(model: Any) -> Iterator[Any]:
    """Yield an engine of the example for a model, in a `vllm` context."""
    spec = importlib.util.spec_from_file_location("vllm_weights", _EXAMPLE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(_EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["vllm_weights"] = module  # needed for its dataclasses
    try:
        spec.loader.exec_module(module)
        config = types.SimpleNamespace(parallel_config=None, model_config=None)
        yield module.CkstoreEngine(None, config, torch.device("cpu"), model)
    finally:
        del sys.modules["vllm_weights"]
