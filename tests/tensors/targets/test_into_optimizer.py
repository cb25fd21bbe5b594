"""Optimizers judge by themselves what they keep, but for what torch's own keep in the shape of a parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.support.captures import Saved, differences
from tests.support.states import assert_same


class Historic(torch.optim.Optimizer):
    """Keeps what grows with each step, in a shape and a dtype of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                past = self.state[parameter].get("past", torch.zeros(0))
                self.state[parameter] = {
                    "past": torch.cat([past, torch.rand(2)]),
                    "codes": torch.ones(3, dtype=torch.uint8),
                }

    def state_dict(self) -> Any:
        raise AssertionError("only a save asks for a state")


def stepped(module: nn.Module, kind: Any = Historic, steps: int = 1) -> Any:
    made = kind(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(steps):
        made.step()
    return made


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_what_an_optimizer_keeps_may_have_another_size(steps: int) -> None:
    saved = torch.optim.Optimizer.state_dict(stepped(nn.Linear(2, 2), steps=2))
    target = stepped(nn.Linear(2, 2), steps=steps)

    plan = Saved(saved).load_into(target)

    assert differences(plan) == {}
    assert_same(saved, torch.optim.Optimizer.state_dict(target))


def test_state_of_the_same_kind_is_filled_where_it_lies() -> None:
    saved, target = (stepped(nn.Linear(2, 2), torch.optim.AdamW) for _ in range(2))
    place = next(iter(target.state.values()))["exp_avg"]

    plan = Saved(saved).load_into(target)

    assert len(plan.direct) == 6
    assert next(iter(target.state.values()))["exp_avg"] is place


def test_one_tensor_that_is_kept_for_two_parameters_takes_the_values_of_none() -> None:
    saved, target = (stepped(nn.Linear(2, 2), torch.optim.AdamW) for _ in range(2))
    first, second = target.state.values()
    second["step"] = first["step"]
    first["exp_avg_sq"] = target.param_groups[0]["params"][0].detach()
    weight = target.param_groups[0]["params"][0].clone()
    list(saved.state.values())[1]["step"] += 5

    Saved(saved).load_into(target)

    assert [int(kept["step"]) for kept in target.state.values()] == [1, 6]
    assert torch.equal(target.param_groups[0]["params"][0], weight)
    assert_same(saved.state_dict(), target.state_dict())
