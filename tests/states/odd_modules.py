"""Modules that keep, show or take up their state in ways of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Buffers(nn.Module):
    """Buffers of these values, and one that is not kept."""

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value)
        self.register_buffer("cache", torch.zeros(2), persistent=False)

    def forward(self, batch: torch.Tensor) -> list[torch.Tensor]:
        for buffer in self.buffers():
            if buffer.is_floating_point():
                buffer.mul_(1.5).add_(batch.mean())
            elif buffer.dtype is not torch.bool:
                buffer.add_(1)
        return [buffer.double() for buffer in self.buffers() if not buffer.is_complex()]


class Extra(nn.Module):
    """A layer with extra state of any kind, which a fresh one does not have."""

    def __init__(self, wrap: Callable[[dict[str, Any]], Any], unwrap: Callable[[Any], dict[str, Any]]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.history: dict[str, Any] = {"scales": []}
        self._wrap, self._unwrap = wrap, unwrap

    def get_extra_state(self) -> Any:
        return self._wrap(self.history)

    def set_extra_state(self, state: Any) -> None:
        self.history = self._unwrap(state)

    def forward(self, batch: torch.Tensor) -> Any:
        self.history["scales"].append(float(batch.abs().max()))
        return self.layer(batch) * sum(self.history["scales"])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, batch: torch.Tensor) -> Any:
        return self.head(self.embedding(batch))


class Renames(nn.Module):
    """A layer that shows its state by other names, and takes it up by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self._register_state_dict_hook(self._show)
        self.register_load_state_dict_pre_hook(self._take)

    @staticmethod
    def _show(module: nn.Module, state: dict[str, Any], prefix: str, metadata: object) -> None:
        for name in ("weight", "bias"):
            state[f"{prefix}old.{name}"] = state.pop(f"{prefix}layer.{name}")

    @staticmethod
    def _take(module: nn.Module, state: dict[str, Any], prefix: str, *others: object) -> None:
        for name in ("weight", "bias"):
            state[f"{prefix}layer.{name}"] = state.pop(f"{prefix}old.{name}")

    def forward(self, batch: torch.Tensor) -> Any:
        return self.layer(batch)


class Adds(nn.Module):
    """A layer whose hook adds a tensor to its state, which another hook takes up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.seen = torch.zeros(2)
        self.register_state_dict_post_hook(self._show)
        self.register_load_state_dict_pre_hook(self._take)

    @staticmethod
    def _show(module: Any, state: dict[str, Any], prefix: str, metadata: object) -> None:
        state[f"{prefix}seen"] = module.seen.clone()

    @staticmethod
    def _take(module: Any, state: dict[str, Any], prefix: str, *others: object) -> None:
        module.seen = state.pop(f"{prefix}seen").clone()

    def forward(self, batch: torch.Tensor) -> Any:
        self.seen = self.seen + batch.mean()
        return self.layer(batch) + self.seen.sum()


class Growing(nn.Module):
    """A queue that grows, and takes any size up as it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("queue", torch.zeros(0, 4))

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.queue = torch.empty_like(state[f"{prefix}queue"])
        super()._load_from_state_dict(state, prefix, *rest)

    def forward(self, batch: torch.Tensor) -> Any:
        self.queue = torch.cat([self.queue, batch[:1].detach()])
        return self.layer(batch) * self.queue.mean()


class OwnState(nn.Module):
    """A module whose state is what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.count = 0

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {"layer": self.layer.state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: Any, *args: Any, **options: Any) -> Any:
        self.count = state_dict["count"]
        return self.layer.load_state_dict(state_dict["layer"])

    def forward(self, batch: torch.Tensor) -> Any:
        self.count += 1
        return self.layer(batch) * self.count


class Prefixed(nn.Module):
    """What keeps a module as `module`, as those that train in parallel do."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *batch: Any) -> Any:
        return self.module(*batch)


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).mT


class Real(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(batch).abs()
        return out


class Parted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
        self.layers = nn.ModuleList([nn.LayerNorm(3), nn.Identity(), nn.Linear(3, 3)])

    def forward(self, batch: torch.Tensor) -> Any:
        out = self.heads["a"](batch) + self.heads["b"](batch)
        for layer in self.layers:
            out = layer(out)
        return out


class Parametered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterDict({"a": torch.rand(4)})
        self.shifts = nn.ParameterList([torch.rand(4), torch.rand(1)])

    def forward(self, batch: torch.Tensor) -> Any:
        return batch * self.scales["a"] + self.shifts[0] * self.shifts[1]


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, batch: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(self.layer, batch, use_reentrant=False)
