"""Histories of small real trainings, for what compaction makes of them: a character model learns Python source."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

# Matrices of more than 1 MiB in half the precision, too: what is smaller shares packs with what never changes.
WIDTH, LAYERS, HEADS, CONTEXT, BATCH = 768, 1, 4, 64, 8
PRETRAINED = 300
Parts = dict[str, dict[str, torch.Tensor]]
"""The tensors of a training by kind: ``w``, ``m``, ``v`` and so on."""


class Model(nn.Module):
    """A small transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.layers(self.tokens(x) + self.places.weight, mask=mask, is_causal=True))


def text(part: int) -> torch.Tensor:
    """Return bytes of Python's own library: even and odd parts are of different files."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[part::2]
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in paths[:40])), dtype=torch.uint8).long()


def _loss(model: nn.Module, data: torch.Tensor, generator: torch.Generator, dtype: torch.dtype) -> Any:
    at = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
    rows = torch.stack([data[i : i + CONTEXT + 1] for i in at.tolist()])
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        logits = model(rows[:, :-1])
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def _states(model: nn.Module, optimizer: torch.optim.Optimizer) -> Parts:
    names: dict[Any, str] = {value: name for name, value in model.named_parameters() if value.requires_grad}
    parts: Parts = {"w": {name: parameter.detach().clone() for parameter, name in names.items()}}
    for short, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
        found = {names[p]: state[key].clone() for p, state in optimizer.state.items() if key in state}
        if found:
            parts[short] = found
    return parts


def pretraining(seed: int = 0) -> Iterator[tuple[Model, Parts]]:
    """Give float32 AdamW from scratch, a step at a time."""
    torch.manual_seed(seed)
    model, data, generator = Model(), text(0), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    ema = deepcopy(model)
    while True:
        _loss(model, data, generator, torch.float32).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, parameter in zip(ema.parameters(), model.parameters(), strict=True):
                average.lerp_(parameter, 0.001)
        parts = _states(model, optimizer)
        yield model, parts | {"ema": {name: p.detach().clone() for name, p in ema.named_parameters()}}


def finetuning(start: Model, rate: float, seed: int = 1) -> Iterator[Parts]:
    """Give a mixed-precision fine-tune: float32 masters, bfloat16 gradients, and the bfloat16 copy of each master."""
    model, data, generator = deepcopy(start), text(1), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    while True:
        _loss(model, data, generator, torch.bfloat16).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to(torch.bfloat16).float()
        optimizer.step()
        optimizer.zero_grad()
        parts = _states(model, optimizer)
        yield parts | {"bf16": {name: w.to(torch.bfloat16) for name, w in parts["w"].items()}}


class _Adapter(nn.Module):
    def __init__(self, inner: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) * 0.02)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x) + x @ self.down.T @ self.up.T


def lora(start: Model, seed: int = 2) -> Iterator[Parts]:
    """Give adapters of rank 16 on the frozen layers, in float32."""
    torch.manual_seed(seed)
    model, data, generator = deepcopy(start), text(1), torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for layer in model.layers.layers:
        # By `modules`: the fast path of the encoder layer reads the weights of these by themselves in inference only.
        layer.linear1, layer.linear2 = _Adapter(layer.linear1), _Adapter(layer.linear2)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    while True:
        _loss(model, data, generator, torch.float32).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield {"lora": _states(model, optimizer)["w"]}


def eight_bit(parts: Iterator[Parts]) -> Iterator[Parts]:
    """Give the moments of a training as an optimizer of 8 bits has them: blocks of 256 with a scale each."""
    for one in parts:
        out: dict[str, torch.Tensor] = {}
        for kind in ("m", "v"):
            for name, value in one[kind].items():
                flat = value.flatten()
                blocks = torch.nn.functional.pad(flat, (0, -len(flat) % 256)).view(-1, 256)
                scale = blocks.abs().amax(1, keepdim=True).clamp_min(1e-30)
                # By the square root: small moments keep their size.
                levels = (blocks / scale).abs().sqrt().mul(127).round() * blocks.sign()
                out[f"{kind}.{name}"] = levels.to(torch.int8)
                out[f"{kind}.{name}.scale"] = scale
        yield {"8-bit": out}


def taken(states: Iterator[Parts], at: list[int]) -> dict[int, Parts]:
    """Return the states at some steps, counted from 0."""
    found = {}
    for step, parts in enumerate(states):
        if step in at:
            found[step] = parts
        if step == max(at):
            break
    return found


Make = Callable[[], Iterator[Parts]]
