"""Each row of the table that needs nothing but torch."""

from __future__ import annotations

import re
from itertools import count

import pytest
import torch

from ckstore import Store
from ckstore.tensors.named import safe_classes
from tests.states import loaders, modules, optimizers, quantized, schedulers, values
from tests.states.table import Row, prove
from tests.support.coverage import sample_seed
from tests.support.requirements import representatives

_TABLES = (optimizers, schedulers, modules, quantized, loaders, values)
ROWS: list[Row] = [row for table in _TABLES for row in table.rows()]
_KINDS = {re.split(r"[(,]", row.name)[0]: row for row in reversed(ROWS)}
"""The first row of each kind stands for those with other options; `make test` has half of the kinds, by the commit."""
_STEPS = count(1)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of options and layers that will go


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for all rows: each has a step of its own."""
    torch.set_num_threads(1)
    return Store.init(tmp_path_factory.mktemp("states") / "store")


@pytest.fixture(autouse=True)
def _nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row begins with no class allowed."""
    monkeypatch.setattr(safe_classes, "_allowed", {})


@pytest.mark.parametrize(
    "row", representatives(ROWS, *[*_KINDS.values()][(sample_seed() or 0) % 2 :: 2]), ids=lambda row: row.name
)
def test_a_state_is_kept_and_goes_on_as_with_torch(row: Row, store: Store) -> None:
    prove(row, store, next(_STEPS))


def test_the_table_is_large_and_each_row_has_its_own_name() -> None:
    assert len(ROWS) >= 500
    assert len({row.name for row in ROWS}) == len(ROWS)
