"""Measure what an import of a history saves: ``python -m tests.tools.history [COUNT]`` prints the table of the page.

A small GPT-2 is trained with the Trainer of transformers and saved COUNT times (20), three times: all of it, LoRA, and
with a frozen backbone. Each folder is imported into a store of its own, and every file is compared.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ckstore import Store
from ckstore.training import import_history
from tests.support.stores import disk_bytes
from tests.support.trees import look

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
KINDS = ("full", "LoRA", "frozen backbone")
MIB = 2**20


def model(kind: str) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(
        n_layer=3,
        n_embd=192,
        n_head=4,
        vocab_size=600,
        n_positions=64,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=kind != "frozen backbone",
    )
    made = GPT2LMHeadModel(config)
    if kind == "frozen backbone":
        made.transformer.requires_grad_(False)
    if kind == "LoRA":
        from peft import LoraConfig, get_peft_model

        return get_peft_model(made, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))
    return made


def train(kind: str, folder: Path, count: int) -> None:
    import torch
    from transformers import Trainer, TrainingArguments

    rows = torch.randint(0, 600, (64, 32), generator=torch.Generator().manual_seed(2))
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=count,
        save_steps=1,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
    )
    Trainer(
        model=model(kind), args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows]
    ).train()


def measure(kind: str, folder: Path, count: int) -> tuple[int, int]:
    """Return the bytes of the folder and of the store that it was imported into, after comparing every file."""
    train(kind, folder / "out", count)
    with Store.init(folder / "store", chunk_bytes=MIB) as store:
        empty = disk_bytes(store.path)
        report = import_history(store, folder / "out")
        if len(report.imported) != count:
            msg = f"{len(report.imported)} checkpoints were imported, wanted {count}: {report.skipped}"
            raise RuntimeError(msg)
        (folder / "back").mkdir()
        for info in store.checkpoints():
            store.checkout(info, folder / "back" / str(info.step))
            if look(folder / "back" / str(info.step)) != look(folder / "out" / f"checkpoint-{info.step}"):
                msg = f"checkpoint-{info.step} came back different"
                raise RuntimeError(msg)
        return report.source_bytes, disk_bytes(store.path) - empty


def main(count: int) -> None:
    lines = [f"| Training, {count} checkpoints | Folder | In the store | Share |", "| --- | --- | --- | --- |"]
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            before, after = measure(kind, Path(folder), count)
        lines.append(f"| {kind} | {before / MIB:.1f} MiB | {after / MIB:.1f} MiB | {after / before:.0%} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
