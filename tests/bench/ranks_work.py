"""What each of the four processes of `tests.bench.ranks` does; functions that `tests.support.gloo.Group` calls."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as torch_load
from torch.distributed.checkpoint.state_dict_saver import save as torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from ckstore import Store
from ckstore.integrations import dcp
from tests.bench.case import sync_file
from tests.bench.usage import PeakMemory

COLUMNS = 4096
ROWS_A_RANK = 2048  # 32 MiB of float32, so that a tensor of four ranks has 128 MiB
_state: dict[str, Any] = {}
_stores: dict[str, Store] = {}


def make(nbytes: int, seed: int) -> int:
    """Make the state of all ranks, of about `nbytes`; return how many bytes it has."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    generator = torch.Generator().manual_seed(seed * 1000 + dist.get_rank())
    one = ROWS_A_RANK * COLUMNS * 4 * ranks
    _state.clear()
    for number in range(max(1, round(nbytes / one))):
        mine = torch.randn(ROWS_A_RANK, COLUMNS, generator=generator)
        _state[f"w{number}"] = DTensor.from_local(mine, mesh, [Shard(0)])
    return one * len(_state)


def zero() -> None:
    """Forget what the state holds, not its memory."""
    for tensor in _state.values():
        tensor.to_local().zero_()


def begin(system: str, folder: str) -> None:
    """Make the place where the system saves, and open it."""
    if system != "ckstore":
        return
    if dist.get_rank() == 0:
        Store.init(folder).close()
    dist.barrier()
    _stores[folder] = Store.open(folder)


def rehearse(system: str, folder: str) -> None:
    """Save and load a little, so that what is imported for it is."""
    begin(system, folder)
    kept = dict(_state)
    try:
        _state.clear()
        _state["w"] = torch.full((4,), float(dist.get_rank()))
        save(system, folder, 0)
        load(system, folder, 0)
    finally:
        _state.clear()
        _state.update(kept)


def checksum() -> float:
    """Return what tells whether the state is there again."""
    return float(sum(tensor.to_local().double().abs().sum() for tensor in _state.values()))


def save(system: str, folder: str, step: int) -> tuple[float, int]:
    """Save durably; return the seconds that this rank took, and the memory that it took for it."""
    with _measured() as found:
        if system == "ckstore":
            dcp.save(_stores[folder], _state, step)
        else:
            place = Path(folder, str(step))
            torch_save(_state, storage_writer=FileSystemWriter(place, sync_files=True))
            if dist.get_rank() == 0:  # its files are durable; their names are not
                sync_file(place)
                sync_file(place.parent)
            dist.barrier()
    return found[0], found[1]


def load(system: str, folder: str, step: int) -> tuple[float, int]:
    """Load into the state; return as `save` does."""
    with _measured() as found:
        if system == "ckstore":
            dcp.load(_stores[folder], _state, f"main@{step}")
        else:
            torch_load(_state, storage_reader=FileSystemReader(Path(folder, str(step))))
    return found[0], found[1]


@contextlib.contextmanager
def _measured() -> Any:
    found: list[Any] = []
    dist.barrier()
    started_s = time.perf_counter()
    with PeakMemory() as memory:
        yield found
    found += [time.perf_counter() - started_s, memory.extra_bytes]
