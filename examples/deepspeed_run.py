"""Train with DeepSpeed: deepspeed deepspeed_run.py STORE OUT, or torchrun. Run it again to resume.

Without GPUs, set DS_ACCELERATOR=cpu.
"""

import sys

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator

from ckstore import RetentionPolicy, Store
from ckstore.integrations.deepspeed import install, load

STEPS = 6
if get_accelerator().device_name() == "cpu":
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # otherwise it is compiled first


def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine, out=None):
    while engine.global_steps < STEPS:
        draw = torch.Generator().manual_seed(1000 * engine.global_steps + engine.global_rank)
        rows = torch.randn(4, 8, generator=draw).to(engine.device)
        engine.backward(engine(rows).square().mean())
        engine.step()
        if out is not None and engine.global_steps % 2 == 0:
            engine.save_checkpoint(out, tag=f"global_step{engine.global_steps}")


engine = make()
store = Store.open_or_init(sys.argv[1])
store.config.retention = RetentionPolicy(keep_last=3)
install(engine, store)
if store.latest() is not None:
    load(engine, store, sys.argv[2])
train(engine, sys.argv[2])
