"""Real training: all that a run needs to go on, there and back, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.captures import Saved, differences
from tests.support.states import assert_same, tensor_bits


class Training:
    """A small run with everything that has a state."""

    def __init__(self, make_optimizer: Any = torch.optim.AdamW) -> None:
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.LSTM(6, 3), torch.nn.Dropout(0.5)
        )
        self.model.register_parameter("tied", self.model[0].weight)  # type: ignore[arg-type]
        self.optimizer = make_optimizer(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.numpy = np.random.default_rng(3)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            noise = torch.from_numpy(self.numpy.standard_normal((5, 4), dtype=np.float32))
            hidden = self.model[1](self.model[0](noise + torch.rand(4) * random.random()))
            self.model[3](self.model[2](hidden)[0]).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def state(self) -> dict[str, Any]:
        return {
            **self.objects,
            "rng": {
                "torch": torch.get_rng_state(),
                "python": random.getstate(),
                "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - what old code uses
                "generator": self.numpy.bit_generator.state,
            },
            "step": self.scheduler.last_epoch,
        }

    def set_rng(self, rng: dict[str, Any]) -> None:
        torch.set_rng_state(rng["torch"])
        random.setstate(rng["python"])
        np.random.set_state(rng["numpy"])  # noqa: NPY002
        self.numpy.bit_generator.state = rng["generator"]

    def weights(self) -> dict[str, bytes]:
        return {name: tensor_bits(tensor) for name, tensor in self.model.state_dict().items()}


def test_everything_a_run_needs_comes_back_the_same() -> None:
    run = Training()
    run.steps(3)

    state = run.state()

    assert_same(state, Saved(state).load())


def test_a_run_goes_on_from_a_loaded_state_bit_for_bit() -> None:
    run = Training()
    run.steps(3)
    saved = Saved(run.state())
    run.steps(5)

    resumed = Training()
    state = saved.load()
    for name, part in resumed.objects.items():
        part.load_state_dict(state[name])
    resumed.set_rng(state["rng"])
    resumed.steps(5)

    assert resumed.weights() == run.weights()


@pytest.mark.parametrize(
    "make_optimizer",
    [
        torch.optim.AdamW,
        lambda parameters, lr: torch.optim.AdamW(parameters, lr=torch.tensor(lr), amsgrad=True),
        lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
        torch.optim.Adafactor,
    ],
    ids=["adamw", "tensor-lr", "sgd", "adafactor"],
)
def test_a_run_goes_on_from_what_was_read_into_it(make_optimizer: Any) -> None:
    run = Training(make_optimizer)
    run.steps(3)
    saved = Saved(run.state())
    run.steps(5)

    resumed = Training(make_optimizer)  # its optimizer has no state yet
    places = [parameter.data_ptr() for parameter in resumed.model.parameters()]
    target = {**resumed.objects, "rng": {}, "step": 0}
    plan = saved.load_into(target)
    resumed.set_rng(target["rng"])
    assert [parameter.data_ptr() for parameter in resumed.model.parameters()] == places
    resumed.steps(5)

    assert differences(plan) == {}
    assert target["step"] == 3
    assert resumed.weights() == run.weights()
    assert resumed.scheduler.get_last_lr() == run.scheduler.get_last_lr()


def test_model_and_optimizer_that_have_stepped_are_filled_where_they_are() -> None:
    run = Training()
    run.steps(3)
    saved = Saved(run.objects)
    expected = run.weights()
    run.steps(2)
    moments = [state["exp_avg"].data_ptr() for state in run.optimizer.state.values()]
    live = [*run.model.state_dict().values(), *(v for s in run.optimizer.state.values() for v in s.values())]
    versions = [tensor._version for tensor in live]

    plan = saved.load_into(run.objects)

    assert plan.indirect == set()
    assert run.weights() == expected
    assert [state["exp_avg"].data_ptr() for state in run.optimizer.state.values()] == moments
    assert all(tensor._version > version for tensor, version in zip(live, versions, strict=True))


def test_what_a_module_has_and_the_checkpoint_lacks_is_told_before_anything_is_read() -> None:
    saved = Saved(torch.nn.Linear(2, 2, bias=False))

    plan = saved.plan(torch.nn.Linear(2, 2))

    assert plan.differences.missing == ["bias"]


def test_a_module_of_another_shape_is_told_before_anything_is_read() -> None:
    saved = Saved({"model": torch.nn.Linear(2, 2)})

    plan = saved.plan({"model": torch.nn.Linear(3, 2)})

    assert plan.differences.mismatched == {"model.weight": "shape [2, 3] float32 wanted, found shape [2, 2] float32"}


def test_a_lazy_module_gets_its_shapes_from_the_checkpoint() -> None:
    module = torch.nn.LazyLinear(2)

    Saved(torch.nn.Linear(3, 2)).load_into(module)

    assert module.weight.shape == (2, 3)


def test_the_plain_state_of_a_module_can_be_the_target() -> None:
    stored, module = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

    plan = Saved(stored).load_into(module.state_dict())

    assert sorted(plan.direct) == [0, 1]
    assert torch.equal(module.weight, stored.weight)


SCHEDULERS: list[Any] = [
    lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
    lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    torch.optim.lr_scheduler.ReduceLROnPlateau,
    lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[2],
    ),
]


@pytest.mark.parametrize("make", SCHEDULERS, ids=["step", "multi-step", "lambda", "one-cycle", "plateau", "sequential"])
def test_the_state_of_a_scheduler_comes_back_the_same(make: Any) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = make(optimizer)
    optimizer.step()
    scheduler.step(*[1.0] * isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))

    state = {"optimizer": optimizer, "scheduler": scheduler}

    assert_same(state, Saved(state).load())
