"""A tiny run of TRL's SFTTrainer with an adapter, in this process or as a program: STORE OUT KILL_AT."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ckstore import Store
from tests.integrations import tiny_trainer


def make(folder: Path, store: Store | None = None, saves: str = "files") -> Any:
    """Return an SFTTrainer with an adapter; of TRL alone without a store."""
    import torch
    from peft import LoraConfig

    from ckstore.integrations.transformers import CkstoreTrainerMixin

    trl: Any = importlib.import_module("trl")
    datasets: Any = importlib.import_module("datasets")
    bases = (trl.SFTTrainer,) if store is None else (CkstoreTrainerMixin, trl.SFTTrainer)
    cls: Any = type("Trainer", bases, {} if store is None else {"ckstore": store, "ckstore_saves": saves})
    rows = torch.randint(0, 50, (32, 16), generator=torch.Generator().manual_seed(2)).tolist()
    options = {"max_steps": 6, "save_steps": 2, "per_device_train_batch_size": 4, "report_to": [], "use_cpu": True}
    torch.manual_seed(5)
    return cls(
        model=tiny_trainer.model(),
        args=trl.SFTConfig(output_dir=str(folder), seed=3, disable_tqdm=True, **options),
        train_dataset=datasets.Dataset.from_dict({"input_ids": rows}),
        peft_config=LoraConfig(r=2, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True),
        processing_class=tokenizer(),
    )


def tokenizer() -> Any:
    """Return one whose tokens are numbers."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    words = {str(number): number for number in range(50)}
    return fast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="0")), unk_token="0", pad_token="1", eos_token="2"
    )


def main(store: str, out: str, kill_at: str) -> None:
    import torch

    import ckstore.ops.save.save  # noqa: F401 - it has its own name for what is replaced

    torch.set_num_threads(1)
    tiny_trainer.kill_when_step_is_published(int(kill_at))
    make(Path(out), Store.open(store)).train()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
