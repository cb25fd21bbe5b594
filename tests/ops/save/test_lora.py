"""A fine-tune with adapters on a frozen base: the base is stored once, whatever it is saved or written as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ckstore import Store
from ckstore_cli.demo.trainer import Adapter, ByteGpt
from tests.support.stores import check_store, disk_bytes

MIB = 2**20
CHECKPOINTS = 10


class FineTune:
    """A model, its adapters, and the optimizer of those."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(5)
        self.model = ByteGpt(layers=4)
        self.model.requires_grad_(requires_grad=False)
        self.model.head = Adapter(self.model.head)  # type: ignore[assignment]
        self.adapters = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.adapters, lr=1e-2)

    def step(self) -> None:
        loss = self.model.loss(torch.randint(256, (2, 33)))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def base_bytes(self) -> int:
        return sum(int(one.nbytes) for one in self.model.state_dict().values()) - self.adapter_bytes()

    def adapter_bytes(self) -> int:
        return sum(one.nbytes for one in self.adapters)

    def changed_bytes(self) -> int:
        """The adapters and what AdamW keeps for each: two moments and a count of steps."""
        return 3 * self.adapter_bytes() + 4 * len(self.adapters)


def save_state(store: Store, training: FineTune, step: int, place: Path) -> None:
    state: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer, "rng": torch.get_rng_state()}
    store.save(state, step)


def commit_files(store: Store, training: FineTune, step: int, place: Path) -> None:
    folder = place / f"checkpoint-{step}"
    folder.mkdir()
    save_file(training.model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    torch.save(training.optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(torch.get_rng_state(), folder / "rng_state.pth")
    store.commit(folder)


@pytest.mark.parametrize("keep", [save_state, commit_files], ids=["states", "files"])
def test_ten_checkpoints_cost_their_base_once_and_what_changed(keep: Any, tmp_path: Path) -> None:
    training = FineTune()
    store = Store.init(tmp_path / "store")
    for step in range(1, CHECKPOINTS + 1):
        training.step()
        keep(store, training, step, tmp_path)

    stored, least = disk_bytes(store.path), training.base_bytes() + CHECKPOINTS * training.changed_bytes()

    print(f"{stored} bytes stored, {stored / least:.4f} x the base once and {CHECKPOINTS} x what changed")
    assert len(store.checkpoints()) == CHECKPOINTS
    assert stored <= 1.05 * least
    check_store(store.path)


def test_a_base_that_was_saved_costs_nothing_in_the_fine_tune(tmp_path: Path) -> None:
    training = FineTune()
    store = Store.init(tmp_path / "store")
    save_file(training.model.state_dict(), tmp_path / "base.safetensors")
    store.commit(tmp_path / "base.safetensors", run="base")
    training.step()

    save_state(store, training, 1, tmp_path)

    assert store.info("main@latest").new_bytes <= training.changed_bytes() + 0.05 * training.base_bytes()
