"""Small models and the ways in which the runs of the table go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.states.table import Parts

MakeOptimizer = Callable[[Any], Any]


def model() -> torch.nn.Sequential:
    """Return a model with matrices and vectors."""
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def loss_of(parts: Parts) -> torch.Tensor:
    """Return the loss of the model in `parts` for a batch that torch's seed tells."""
    loss: torch.Tensor = parts["model"](torch.randn(5, 4)).square().mean()
    return loss


def train(parts: Parts) -> object:
    """Do a step of the optimizer, and of the scheduler if there is one."""
    optimizer = parts["optimizer"]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(parts)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    if "scheduler" in parts:
        parts["scheduler"].step()
    return loss.detach()


def with_optimizer(make: MakeOptimizer, make_model: Callable[[], Any] = model) -> Callable[[], Parts]:
    """Return what makes a model and an optimizer of its parameters."""

    def parts() -> Parts:
        made = make_model()
        return {"model": made, "optimizer": make(made.parameters())}

    return parts
