"""A resume of the Trainer or accelerate with other batches says how many samples are read again, or never."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CkstoreWarning, Store
from tests.integrations import tiny_trainer
from tests.integrations.marks import TRAINS
from tests.support.requirements import representatives, require, require_transformers
from tests.support.stores import check_store

pytestmark = TRAINS
SAMPLES = 30


def trainer(folder: Path, store: Store, read: list[int], **options: Any) -> Any:
    """Return a Trainer that appends the sample of each row that it trains on to `read`."""

    class Recorder(tiny_trainer.mixed()):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *arguments: Any) -> Any:
            read.extend(inputs["input_ids"][:, 0].tolist())
            return super().training_step(model, inputs, *arguments)

    made = tiny_trainer.make(Recorder, folder, store, **options)
    rows = [torch.full((16,), sample) for sample in range(SAMPLES)]
    made.train_dataset = [{"input_ids": row, "labels": row} for row in rows]
    return made


@pytest.mark.parametrize(
    "before, after",
    representatives(
        [
            ({"per_device_train_batch_size": 8}, {"per_device_train_batch_size": 4}),
            ({"per_device_train_batch_size": 3}, {"per_device_train_batch_size": 6, "dataloader_drop_last": True}),
            ({"per_device_train_batch_size": 4}, {"per_device_train_batch_size": 4, "ignore_data_skip": True}),
            ({"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3}),
            ({"per_device_train_batch_size": 4}, {"per_device_train_batch_size": 4}),
        ],
        ({"per_device_train_batch_size": 8}, {"per_device_train_batch_size": 4}),
        ({"per_device_train_batch_size": 3}, {"per_device_train_batch_size": 6, "dataloader_drop_last": True}),
        ({"per_device_train_batch_size": 4}, {"per_device_train_batch_size": 4, "ignore_data_skip": True}),
    ),
)
def test_the_trainer_says_how_many_samples_it_reads_again_or_never(
    before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    require_transformers()
    store = Store.init(tmp_path / "store")
    read: list[int] = []
    common = {"max_steps": -1, "num_train_epochs": 3, "save_strategy": "no"}
    trainer(tmp_path / "a", store, read, **{**common, "max_steps": 6, "save_strategy": "steps", **before}).train()
    resumed = trainer(tmp_path / "b", store, read, **common, **after)
    resumed.train(resume_from_checkpoint="ckstore:6")

    said = [sentence for sentence in resumed.resumed_inexactly if re.search(r"\d samples? of", sentence)]
    changed = len(read) - 3 * SAMPLES
    if after.get("ignore_data_skip"):
        # It begins the epoch again, and ends after as many steps as before.
        assert Counter(read[:24]) == Counter(read[24:48])
        assert said == ["24 samples of the data will be read a second time"]
    elif before == after:
        assert said == []
        assert Counter(read) == Counter(dict.fromkeys(range(SAMPLES), 3))
    elif changed > 0:
        assert said == [f"{changed} samples of the data will be read a second time"]
    else:
        assert changed < 0
        assert said == [f"{-changed} samples of the data will never be read"]
    check_store(store.path)


def test_a_loader_of_accelerate_without_a_position_says_how_many_samples_are_read_again(tmp_path: Path) -> None:
    require(importlib.util.find_spec("accelerate") is not None, "needs accelerate")
    from accelerate import Accelerator

    from ckstore.integrations.accelerate import install

    store = Store.init(tmp_path / "store")
    accelerator = Accelerator(cpu=True)
    kept = install(accelerator, store)
    numbers = torch.utils.data.TensorDataset(torch.arange(22.0))
    loader = accelerator.prepare(torch.utils.data.DataLoader(numbers, batch_size=4, shuffle=True))
    for step, _ in enumerate(loader):
        accelerator.save_state(str(tmp_path / f"state-{step}"))

    for step in range(5):
        with pytest.warns(CkstoreWarning, match="will be read a second time"):
            accelerator.load_state(f"ckstore:{step}")
        assert (
            f"{4 * step + 4} samples of the epoch will be read a second time, unless the script skips their batches "
            "with accelerator.skip_first_batches" in kept.resumed_inexactly
        )
    accelerator.load_state("ckstore:5")
    assert kept.resumed_inexactly == ()  # after the last batch
    check_store(store.path)
