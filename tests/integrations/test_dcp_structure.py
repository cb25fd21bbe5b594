"""The structure of a state in `ckstore.integrations.dcp`: lists of dicts, and empty dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict

from ckstore import Store
from ckstore.integrations import dcp

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


def trained(lr: float) -> tuple[torch.nn.Module, torch.optim.Adam]:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.filterwarnings("ignore:resuming from:ckstore.CkstoreWarning")
def test_dcp_loads_the_settings_of_an_optimizer_from_store_save(store: Store, by_name: bool, strict: bool) -> None:
    def state(lr: float) -> dict[str, Any]:
        model, optimizer = trained(lr)
        if not by_name:
            return {"model": model.state_dict(), "optim": optimizer.state_dict()}
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optim": moments}

    store.save(state(0.5), step=1)
    target = state(0.001)
    report = dcp.load(store, target, 1, strict=strict)

    assert target["optim"]["param_groups"][0]["lr"] == 0.5
    assert (report.missing, report.unexpected, report.not_loaded) == ((), (), {})
