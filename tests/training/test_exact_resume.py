"""What a report calls exact is exact, for each loader of torch, and what can be exact is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ckstore import Store
from tests.support.stores import check_store
from tests.training.exact_cases import POSITIONS, Case, plain

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch about forks


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.crossed
@pytest.mark.parametrize("has_generator", [True, False], ids=["generator", "no generator"])
@pytest.mark.parametrize("workers", [0, 2, "persistent"])
@pytest.mark.parametrize("draws", ["none", "global", "its own"])
@pytest.mark.parametrize("position", POSITIONS)
def test_a_plain_loader_goes_on_exactly_after_an_epoch_or_the_report_names_it(
    has_generator: bool, workers: int | str, draws: str, position: str, tmp_path: Path
) -> None:
    store = Store.init(tmp_path / "store")
    case = Case(plain, has_generator, workers, draws, position)

    is_same, report = case.resume(store)

    # Workers have drawn the whole order before the last batch; without them the loader draws once more after it.
    is_over = position == "after an epoch" or (position == "at the last batch" and workers != 0)
    can_be_exact = is_over and (workers != "persistent" or draws == "none")
    assert (report.inexact == ()) == can_be_exact, report
    assert is_same or report.inexact
    if can_be_exact:
        assert is_same
    if position == "inside an epoch":
        assert "8 samples of the epoch will be read a second time" in report.inexact
    check_store(store.path)
