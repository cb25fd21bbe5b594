"""Train with the Trainer of transformers: python trainer.py STORE OUTPUT_DIR. Run it again to resume."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from ckstore import RetentionPolicy, Store
from ckstore.integrations.transformers import CkstoreTrainerMixin


class StoredTrainer(CkstoreTrainerMixin, Trainer):  # the mixin comes first
    ckstore = Store.open_or_init(sys.argv[1])


StoredTrainer.ckstore.config.retention = RetentionPolicy(keep_last=3)

config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
rows = torch.randint(0, 50, (32, 16), generator=torch.Generator().manual_seed(2))
arguments = TrainingArguments(
    output_dir=sys.argv[2],
    max_steps=6,
    save_steps=2,
    save_total_limit=1,
    per_device_train_batch_size=4,
    use_cpu=True,
    report_to=[],
)
trainer = StoredTrainer(
    model=GPT2LMHeadModel(config), args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows]
)
trainer.train(resume_from_checkpoint="auto")
