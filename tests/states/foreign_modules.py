"""Rows: modules that torchao and bitsandbytes quantize, and those that peft adapts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.states.table import Parts, Run

_QUANTIZATION = "torchao.quantization"
_INT4: Any = getattr(torch, "int4")  # noqa: B009 - of which torch's types say nothing
_TORCHAO: list[tuple[str, str, dict[str, Any]]] = [
    (_QUANTIZATION, "Int8WeightOnlyConfig", {}),
    (_QUANTIZATION, "Int8DynamicActivationInt8WeightConfig", {}),
    (_QUANTIZATION, "IntxWeightOnlyConfig", {}),
    (_QUANTIZATION, "IntxWeightOnlyConfig", {"weight_dtype": _INT4}),
    (_QUANTIZATION, "Int8DynamicActivationIntxWeightConfig", {}),
    (_QUANTIZATION, "Float8WeightOnlyConfig", {}),
    ("torchao.prototype.quantization.int4.inference_workflow", "PrototypeInt4WeightOnlyConfig", {}),
    ("torchao.prototype._nf4tensor_api", "NF4WeightOnlyConfig", {}),
    ("torchao.prototype.mx_formats.inference_workflow", "NVFP4WeightOnlyConfig", {}),
    ("torchao.prototype.quantization.gguf.api", "GGUFWeightOnlyConfig", {}),
]
_UNKNOWN_TO_TORCH = {
    *("Int8MixedPrecisionTrainingConfig", "NF4WeightOnlyConfig", "int8_weight_only_quantized_training"),
}
"""The tensors of these, or what says how they are put together, are not among torch's safe globals."""
_TORCHAO_TRAINING = ("int8_weight_only_quantized_training", "Int8MixedPrecisionTrainingConfig")


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _computes(name: str, make: Callable[[], Any], width: int = 64, dtype: torch.dtype = torch.float32) -> Run:
    """Return the row of a module that only computes."""

    def step(parts: Parts) -> object:
        out: torch.Tensor = parts["model"](torch.randn(2, width, dtype=dtype)).detach()
        return out

    return Run(name, lambda: {"model": make()}, step)


def _learns(
    name: str, make: Callable[[], Any], width: int = 64, optimizer: Callable[[Any], Any] = torch.optim.AdamW
) -> Run:
    """Return the row of a module that is trained, as far as it can be."""

    def parts() -> Parts:
        made = make()
        trained = [p for p in made.parameters() if p.requires_grad]
        return {"model": made, "optimizer": optimizer(trained)}

    def step(parts: Parts) -> object:
        parts["optimizer"].zero_grad()
        loss = parts["model"](torch.randn(2, width)).float().square().mean()
        loss.backward()
        parts["optimizer"].step()
        return loss.detach()

    return Run(name, parts, step)


def _quantized(module: str, name: str, options: dict[str, Any]) -> Run:
    def make() -> Any:
        made = nn.Sequential(nn.Linear(128, 256)).bfloat16()
        _of(_QUANTIZATION, "quantize_")(made, _of(module, name)(**options))
        return made

    words = ", ".join(f"{key}={value}" for key, value in options.items())
    row = _computes(f"torchao: {name}({words})", make, 128, torch.bfloat16)
    return replace(row, allow=name in _UNKNOWN_TO_TORCH)


def _quantized_training(name: str) -> Run:
    def make() -> Any:
        made = nn.Sequential(nn.Linear(64, 64))
        _of(_QUANTIZATION, "quantize_")(made, _of("torchao.prototype.quantized_training", name)())
        return made

    row = _learns(f"torchao: {name}", make, optimizer=_of("torchao.optim.adam", "_AdamW"))
    return replace(row, allow=name in _UNKNOWN_TO_TORCH)


def _learns_to_be_quantized() -> Any:
    made = nn.Sequential(nn.Linear(64, 64))
    config = _of(_QUANTIZATION, "Int8DynamicActivationIntxWeightConfig")(weight_dtype=_INT4)
    _of(_QUANTIZATION, "quantize_")(made, _of("torchao.quantization.qat", "QATConfig")(config, step="prepare"))
    return made


def _bitsandbytes(kind: str, **options: Any) -> Callable[[], Any]:
    return lambda: _of("bitsandbytes.nn", kind)(64, 64, **options).to("cpu")


class _Small(nn.Module):
    """A model with the names that peft looks for."""

    def __init__(self, linear: Callable[[int, int], Any]) -> None:
        super().__init__()
        self.q_proj, self.v_proj = linear(64, 64), linear(64, 64)

    def forward(self, batch: torch.Tensor) -> Any:
        return self.v_proj(torch.tanh(self.q_proj(batch)))


def _adapted(linear: Callable[[int, int], Any], **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        peft = importlib.import_module("peft")
        config = peft.LoraConfig(
            **{"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **options}
        )
        return peft.get_peft_model(_Small(linear).to("cpu"), config)

    return make


def _four_bits(inner: int, outer: int) -> Any:
    return _of("bitsandbytes.nn", "Linear4bit")(inner, outer, quant_type="nf4")


def _eight_bits(inner: int, outer: int) -> Any:
    return _of("bitsandbytes.nn", "Linear8bitLt")(inner, outer, has_fp16_weights=False)


def _make_weights(parts: Parts, state: Any) -> None:
    """Make weights of 4 bits of what was loaded, as the hint says."""
    linear, weight = _of("bitsandbytes.nn", "Linear4bit"), _of("bitsandbytes.nn", "Params4bit")
    for name, module in parts["model"].named_modules():
        if isinstance(module, linear):
            own = f"{name}.weight".removeprefix(".")
            kept = {k.removeprefix(f"{own}."): v for k, v in state["model"].items() if k.startswith(f"{own}.")}
            module.weight = weight.from_prequantized(state["model"][own], kept, device="cpu", module=module)


class _Adapters:
    """The adapters of a model alone, which is what QLoRA saves; the base is that of every run."""

    def __init__(self, make: Callable[[], Any]) -> None:
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(77)  # the base does not depend on the seed of the run
        self.model = make()
        torch.default_generator.set_state(state)
        for name, parameter in self.model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_()

    def parameters(self) -> list[Any]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def __call__(self, batch: torch.Tensor) -> Any:
        return self.model(batch)

    def state_dict(self) -> Any:
        return importlib.import_module("peft").get_peft_model_state_dict(self.model)

    def load_state_dict(self, state: Any) -> None:
        importlib.import_module("peft").set_peft_model_state_dict(self.model, state)


def rows() -> Iterator[Run]:
    """Yield the rows."""
    for module, name, options in _TORCHAO:
        yield _quantized(module, name, options)
    for name in _TORCHAO_TRAINING:
        yield _quantized_training(name)
    yield _learns("torchao: QATConfig", _learns_to_be_quantized)
    for quantized in (True, False):
        make = _bitsandbytes("Linear8bitLt", has_fp16_weights=not quantized)
        yield replace(_computes(f"bitsandbytes: Linear8bitLt({quantized})", make), again=not quantized)
    for kind in ("nf4", "fp4"):
        for nested in (True, False):
            make = _bitsandbytes("Linear4bit", quant_type=kind, compress_statistics=nested)
            row = _computes(f"bitsandbytes: Linear4bit({kind}, compress_statistics={nested})", make)
            yield replace(row, by_hand=_make_weights)
    yield Run(
        "bitsandbytes: StableEmbedding",
        lambda: {"model": _of("bitsandbytes.nn", "StableEmbedding")(16, 8)},
        lambda parts: parts["model"](torch.randint(16, (2, 3))).detach(),
    )
    yield _learns("peft: LoRA", _adapted(nn.Linear))
    yield _learns("peft: DoRA", _adapted(nn.Linear, use_dora=True))
    yield replace(_learns("peft: LoRA of 8 bits", _adapted(_eight_bits)), again=False)
    yield replace(_learns("peft: QLoRA, the whole model", _adapted(_four_bits)), by_hand=_make_weights)
    for name, linear in (("LoRA", nn.Linear), ("LoRA of 8 bits", _eight_bits), ("QLoRA", _four_bits)):
        yield _learns(f"peft: {name}, the adapters alone", partial(_Adapters, _adapted(linear)))
