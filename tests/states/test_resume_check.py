"""The check of a resume agrees with the report of `restore` about the loader of torchdata."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore.training import EPOCH_END, Loop, StatefulDataset, check
from tests.support.requirements import require_c_compiler
from tests.support.warm_bin import warm_bin
from tests.training.exact_cases import stateful
from tests.training.loops_to_check import Rows

if importlib.util.find_spec("torchdata") is None:
    pytest.skip("needs torchdata: make states", allow_module_level=True)

pytestmark = pytest.mark.integration


def _loop(workers: int, data: Any, **options: Any) -> Loop:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = stateful(data, batch_size=4, shuffle=True, num_workers=workers, **options)

    def train() -> Iterator[Any]:
        while True:
            for rows in loader:
                optimizer.zero_grad()
                loss = model(rows).square().mean()
                loss.backward()
                optimizer.step()
                yield loss
            yield EPOCH_END

    return Loop(train, {"model": model, "optimizer": optimizer, "dataloader": loader})


def without_workers() -> Loop:
    """The loader draws in this process."""
    return _loop(0, Rows())


def with_generator() -> Loop:
    """The loader has a generator of its own."""
    return _loop(0, Rows(), generator=torch.Generator().manual_seed(2))


def with_workers() -> Loop:
    """Two workers draw, and keep nothing."""
    return _loop(2, Rows())


def with_workers_that_keep() -> Loop:
    """Two workers draw, and hand over their random states."""
    return _loop(2, StatefulDataset(Rows()))


def with_workers_that_stay() -> Loop:
    """They go on through all epochs."""
    return _loop(2, StatefulDataset(Rows()), persistent_workers=True)


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """A Python that starts quickly."""
    require_c_compiler()
    with warm_bin("torch", "torch._dynamo", "ckstore.training.resume_check.check_process") as folder:
        yield folder / "python"


@pytest.mark.parametrize(
    "make_loop",
    [without_workers, with_generator, with_workers, with_workers_that_keep, with_workers_that_stay],
    ids=lambda function: function.__name__,
)
def test_a_stateful_loader_is_exact_where_restore_says_so(
    make_loop: Callable[[], Loop], python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(python))

    report = check(make_loop)

    inside, after = report.points
    assert (after.difference, after.inexact) == (None, ())
    assert (inside.inexact == ()) == (inside.difference is None) == (make_loop is not with_workers)
    if inside.difference is not None:
        assert (inside.difference.kind, inside.cause) == ("batch", "reported")
