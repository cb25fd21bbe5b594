"""One rank on one node, as a program that joins the group and performs operations one after another.

Words: rank, number of ranks, address of the meeting, folder of its store, its mirror, then ``save=STEP`` or
``load=STEP``; or ``die=STEP``, which saves and kills the last rank before it has sent a byte.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from ckstore import Store
from ckstore.integrations import dcp
from ckstore.remote.mirror import mirror_process as mirroring
from ckstore.remote.mirror import nodes_without_shared_store
from tests.support.torch_versions import distribute

MIB = 2**20


def _whole(step: int) -> torch.Tensor:
    return torch.randint(0, 256, (6, MIB), dtype=torch.uint8, generator=torch.Generator().manual_seed(step))


def _state(whole: torch.Tensor, step: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute(whole, mesh, Shard(0)), "step": step}


def main() -> None:
    """Perform the operations given as arguments, and print the result of each as a line of JSON."""
    rank, size, meeting, folder, mirror, *acts = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    vars(mirroring)["start"] = lambda *_: None  # it would outlive the test
    method = f"tcp://{meeting}"
    dist.init_process_group(
        "gloo", init_method=method, rank=int(rank), world_size=int(size), timeout=timedelta(seconds=120)
    )
    store = Store.open_or_init(folder, chunk_bytes=MIB, mirror=mirror)
    for act, _, text in (word.partition("=") for word in acts):
        step = int(text)
        if act == "die" and int(rank) == int(size) - 1:
            vars(nodes_without_shared_store)["push_part"] = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        if act in ("save", "die"):
            info = dcp.save(store, _state(_whole(step), step), step)
            print(json.dumps([info.id, list(info.warnings)]), flush=True)
            continue
        state = _state(torch.zeros(6, MIB, dtype=torch.uint8), 0)
        dcp.load(store, state, step)
        rows = 6 // int(size)
        same = torch.equal(state["w"].to_local(), _whole(step)[int(rank) * rows : (int(rank) + 1) * rows])
        print(json.dumps(bool(same and state["step"] == step)), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
