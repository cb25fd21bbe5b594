"""TRL with an adapter of PEFT and the mixin: killed in a save, with one checkpoint, also past a damaged newest."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ckstore import CkstoreWarning, RetentionPolicy, Store
from tests.integrations import tiny_trl
from tests.integrations.marks import TRAINS
from tests.support.damage import blobs_by_size, flip
from tests.support.requirements import require_transformers

ROOT = Path(__file__).parents[2]
pytestmark = TRAINS


@pytest.fixture(autouse=True, scope="module")
def _trl() -> None:
    require_transformers()
    if importlib.util.find_spec("trl") is None:  # pandas comes with it, which every process that saves would load
        pytest.skip("needs trl, which is no development package: make trl")
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights, by name, of a run of TRL alone, without a stop."""
    trainer = tiny_trl.make(tmp_path_factory.mktemp("whole"))
    trainer.train()
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def test_sft_that_was_killed_in_a_save_goes_on_bit_for_bit_with_one_checkpoint(
    tmp_path: Path, whole: dict[str, torch.Tensor]
) -> None:
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=1)
    words = [sys.executable, "-m", "tests.integrations.tiny_trl", str(store.path), str(tmp_path / "out"), "4"]
    killed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert [info.step for info in store.checkpoints()] == [2]  # the new one was not durable yet
    again = tiny_trl.make(tmp_path / "out", Store.open(store.path))

    again.train(resume_from_checkpoint="auto")

    state = again.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole.items())
    assert [info.step for info in store.checkpoints()] == [6]
    assert all("lora" in name for name in store.load(6)["adapter_model.safetensors"])


def test_sft_whose_state_is_saved_goes_on_past_a_damaged_newest(tmp_path: Path, whole: dict[str, torch.Tensor]) -> None:
    store = Store.init(tmp_path / "store")
    tiny_trl.make(tmp_path / "out", store, "state").train()
    own = [blob for blob in blobs_by_size(store, 6) if blob.stat().st_nlink == 2]
    flip(own[-1], own[-1].stat().st_size // 2)
    again = tiny_trl.make(tmp_path / "out", store, "state")

    with pytest.warns(CkstoreWarning, match="main@6"):
        again.train(resume_from_checkpoint="auto")

    assert os.path.isdir(tmp_path / "out" / ".ckstore-resume-4")
    state = again.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole.items())
    assert store.verify("latest").ok
    assert all("lora" in name for name in store.load(6)["adapter"])
