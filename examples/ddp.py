"""Train with DistributedDataParallel: torchrun --nproc-per-node=2 ddp.py STORE. All ranks capture, rank 0 saves."""

import sys

import torch
import torch.distributed as dist

from ckstore import Store
from ckstore.training import capture, restore

dist.init_process_group("gloo")  # "cpu:gloo,cuda:nccl" with GPUs
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
parts = {"model": model, "optimizer": optimizer, "dataloader": loader}

first = dist.get_rank() == 0
if first:
    Store.open_or_init(sys.argv[1])
dist.barrier()
store = Store.open(sys.argv[1], readonly=not first)

epoch = 0
if store.latest() is not None:
    report = restore(store, "latest-valid", **parts)
    epoch = report.extra["epoch"]

while epoch < 3:
    sampler.set_epoch(epoch)
    for (rows,) in loader:
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
    epoch += 1
    state = capture(**parts, extra={"epoch": epoch})  # every rank calls it, because it gathers random states
    if first:
        store.save(state, step=epoch, metrics={"loss": loss.item()}, if_exists="replace")
        print(f"saved epoch {epoch}")
    dist.barrier()
dist.destroy_process_group()
