#!/bin/sh
# torch_checkpointing 0.1.1: with a resharder, a save needs CUDA even if all tensors and the process group are on the CPU.
#
# A save by several ranks whose item has a `DefaultResharder` first gathers the layout of each rank. The gather puts its bytes on the device
# "cuda" whatever the backend of the group is. So two ranks with gloo save without a resharder, but then no other number of ranks can load;
# with one, the save ends in `AssertionError: Torch not compiled with CUDA enabled` (or a CUDA error), which is no `OSError` and no
# `RuntimeError`.
#
# Seen: two gloo ranks save and load without a resharder; with one, both ranks raise AssertionError.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'torch_checkpointing==0.1.1'
cat > "$dir/try.py" <<'PY'
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch_checkpointing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig


def save(rank, folder, resharder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    config = CheckpointManager.Config(
        items={"model": ItemSpec(resharder=DefaultResharder() if resharder else None)},
        save=SyncCheckpointSaverConfig(),
        storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
    )
    state = {"model": {"w": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}}
    outcome = "saved"
    try:
        CheckpointManager(config).save(f"{folder}/{resharder}", state)
    except AssertionError as error:
        outcome = f"AssertionError: {error}"
    print("resharder" if resharder else "no resharder", "rank", rank, outcome, flush=True)
    assert outcome == ("AssertionError: Torch not compiled with CUDA enabled" if resharder else "saved")


if __name__ == "__main__":
    print("torch_checkpointing", torch_checkpointing.__version__, flush=True)
    for resharder in (False, True):
        mp.spawn(save, (sys.argv[1], resharder), nprocs=2)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
