"""A training of Lightning with the loader of torchdata: exact inside an epoch, and reported at its end."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.integrations.exact_lightning import fit

if importlib.util.find_spec("torchdata") is None or importlib.util.find_spec("lightning") is None:
    pytest.skip("needs torchdata and lightning: make states", allow_module_level=True)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("kind", ["epoch", "inside"])
def test_a_stateful_loader_is_exact_inside_an_epoch_and_reported_at_its_end(tmp_path: Path, kind: str) -> None:
    every = {"epoch": 3, "inside": 2}[kind]
    whole, _ = fit(tmp_path / "whole", every=every, stateful=True)
    fit(tmp_path / "cut", every=every, stop_at=every, stateful=True)

    again, reported = fit(tmp_path / "cut", every=every, resume=True, seed=5, stateful=True)

    if kind == "inside":
        assert reported == ()
        assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in whole.state_dict().items())
    else:
        assert any("save inside an epoch, or use a DataLoader" in sentence for sentence in reported)
