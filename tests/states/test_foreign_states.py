"""Each row of the table that needs packages which few projects have: `make states` installs them."""

from __future__ import annotations

import importlib.util
import warnings
from itertools import count

import pytest
import torch

from ckstore import Store
from ckstore.tensors.named import safe_classes
from tests.states.table import Row, prove

PACKAGES = (
    *("bitsandbytes", "omegaconf", "pydantic", "pytorch_optimizer", "schedulefree", "tensordict", "torchao"),
    *("torchdata", "torchmetrics", "peft", "transformers"),
)
_lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
if _lacking:
    pytest.skip(f"needs {', '.join(_lacking)}: make states", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tests.states import foreign_modules, foreign_optimizers, foreign_others

    _TABLES = (foreign_optimizers, foreign_modules, foreign_others)
    ROWS: list[Row] = [row for table in _TABLES for row in table.rows()]
_STEPS = count(1)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # those of the packages are not ours


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for all rows: each has a step of its own."""
    torch.set_num_threads(1)
    return Store.init(tmp_path_factory.mktemp("states") / "store")


@pytest.fixture(autouse=True)
def _nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row begins with no class allowed."""
    monkeypatch.setattr(safe_classes, "_allowed", {})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_foreign_state_is_kept_and_goes_on_as_with_torch(row: Row, store: Store) -> None:
    prove(row, store, next(_STEPS))


def test_the_table_of_foreign_states_is_large_and_each_row_has_its_own_name() -> None:
    assert len(ROWS) >= 200
    assert len({row.name for row in ROWS}) == len(ROWS)
