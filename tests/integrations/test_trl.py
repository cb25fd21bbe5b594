"""TRL with an adapter of PEFT and the mixin: where TRL is installed, which is not so in the development environment."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.integrations.transformers import CkstoreTrainerMixin
from tests.integrations import tiny_trainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),  # those of TRL are not ours
]


def make(folder: Path, store: Store | None = None, saves: str = "files") -> Any:
    """Return an SFTTrainer with an adapter."""
    trl: Any = importlib.import_module("trl")
    datasets: Any = importlib.import_module("datasets")
    from peft import LoraConfig

    bases = (trl.SFTTrainer,) if store is None else (CkstoreTrainerMixin, trl.SFTTrainer)
    cls: Any = type("Trainer", bases, {} if store is None else {"ckstore": store, "ckstore_saves": saves})
    rows = torch.randint(0, 50, (32, 16), generator=torch.Generator().manual_seed(2)).tolist()
    options = {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True}
    torch.manual_seed(5)
    return cls(
        model=tiny_trainer.model(),
        args=trl.SFTConfig(output_dir=str(folder), seed=3, disable_tqdm=True, **options),
        train_dataset=datasets.Dataset.from_dict({"input_ids": rows}),
        peft_config=LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True),
        processing_class=tokenizer(),
    )


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    words = {str(number): number for number in range(50)}
    return fast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")), unk_token="0", pad_token="1", eos_token="2"
    )


@pytest.mark.parametrize("saves", ["files", "state"])
def test_an_adapter_trained_by_trl_goes_on_bit_for_bit(tmp_path: Path, saves: str) -> None:
    pytest.importorskip("trl")
    torch.set_num_threads(1)
    whole = make(tmp_path / "whole")
    whole.train()
    store = Store.init(tmp_path / "store")
    first = make(tmp_path / "out", store, saves)
    first.train()
    store.delete(6)

    again = make(tmp_path / "out", store, saves)
    again.train(resume_from_checkpoint="auto")

    assert [info.step for info in store.checkpoints()] == [2, 4, 6]
    state = again.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole.model.state_dict().items())
    kept = store.load(6)["adapter"] if saves == "state" else store.load(6)["adapter_model.safetensors"]
    assert all("lora" in name for name in kept)
