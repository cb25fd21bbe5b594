"""States of `torch.distributed.checkpoint`, saved and loaded by torch's own storage and by ckstore's: what each gives.

The functions at the end run on every rank of a group, see `test_as_torch_stores.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from ckstore.integrations.dcp import CkstoreReader, CkstoreWriter
from tests.support.torch_versions import distribute


@dataclass
class Storage:
    """A way to keep checkpoints: torch's files, or a store.

    Attributes:
        kind: ``torch`` or ``ckstore``.
        place: A directory, or the path of a store.
    """

    kind: str
    place: Path
    steps: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    step: int = 0

    def writer(self, *, again: bool = False) -> StorageWriter:
        """Return what writes the next checkpoint; with `again` the same one once more."""
        self.step = self.step if again else next(self.steps)
        if self.kind == "torch":
            return FileSystemWriter(self.place / str(self.step))
        return CkstoreWriter(self.place, self.step, if_exists="replace" if again else "error")

    def reader(self) -> StorageReader:
        """Return what reads the last one."""
        if self.kind == "torch":
            return FileSystemReader(self.place / str(self.step))
        return CkstoreReader(self.place, self.step)


def is_equal(one: Any, other: Any) -> bool:
    """Whether two states are the same in structure and in every bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bits(one), _bits(other))
    return type(one) is type(other) and bool(one == other)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def emptied(state: Any) -> Any:
    """Return a state of the same structure that holds other values."""
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(emptied, state))
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state, memory_format=torch.contiguous_format)
    return type(state)()


def through(storage: Storage, state: Any, into: Any, **options: Any) -> Any:
    """Save a state, load it into another one, and return that, or the kind of error of loading it."""
    save(state, storage_writer=storage.writer())
    load(into, storage_reader=storage.reader(), **options)
    return into


def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small model after some steps of Adam."""
    torch.manual_seed(steps)
    model = nn.Sequential(nn.EmbeddingBag(5, 10), nn.Linear(10, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randint(0, 5, (4, 3))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _tied() -> dict[str, Any]:
    one = torch.arange(8.0)
    return {"a": one, "b": one, "part": one[1:]}


STATES: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "a module": lambda: dict(trained(2)[0].state_dict()),
    "dtypes": lambda: {
        str(dtype): torch.arange(6).to(dtype).reshape(2, 3)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
    },
    "shapes": lambda: {"scalar": torch.tensor(3.5), "none": torch.zeros(0, 4), "one": torch.ones(1, 1, 1)},
    "views": lambda: {"t": torch.arange(12.0).reshape(3, 4).t(), "rows": torch.arange(100.0).reshape(10, 10)[2:5, ::2]},
    "one memory": _tied,
    "values": lambda: {"step": 7, "lr": 1e-3, "name": "a run", "on": True, "raw": b"\0\1", "betas": (0.9, 0.95)},
    "nested": lambda: {"a": {"b": [torch.ones(2), {"c": torch.zeros(3), "n": 1}]}, "list": [1, 2, 3]},
    "names with dots": lambda: {"a.b": torch.ones(2), "a": {"c": torch.zeros(2)}, "": torch.ones(1)},
}


# ---------------------------------------------------------------------- on every rank

SHAPE = (10, 20)
PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "all": Replicate()}


def _whole(seed: int = 0) -> torch.Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed))


def _placed(full: torch.Tensor, how: str) -> DTensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute(full, mesh, PLACEMENTS[how])


def reshard(kind: str, place: str) -> list[str]:
    """Save a tensor by each placement and load it by each; return what did not come back."""
    storage, wrong = Storage(kind, Path(place)), []
    for before in PLACEMENTS:
        save({"w": _placed(_whole(), before)}, storage_writer=storage.writer())
        for after in PLACEMENTS:
            into = {"w": _placed(torch.zeros(SHAPE), after)}
            load(into, storage_reader=storage.reader())
            if not torch.equal(into["w"].full_tensor(), _whole()):
                wrong.append(f"{before} to {after}")
        plain = {"w": torch.zeros(SHAPE)}
        load(plain, storage_reader=storage.reader())
        if not torch.equal(plain["w"], _whole()):
            wrong.append(f"{before} to a plain tensor")
    return wrong


def reshard_uneven(kind: str, place: str) -> list[str]:
    """The same for `ShardedTensor`, whose shards are of any sizes and lie on any rank."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
    from torch.distributed._shard.sharding_spec.chunk_sharding_spec import ChunkShardingSpec

    def rows(*sizes_and_ranks: tuple[int, int]) -> EnumerableShardingSpec:
        starts = itertools.accumulate((size for size, _ in sizes_and_ranks), initial=0)
        return EnumerableShardingSpec(
            [
                ShardMetadata([start, 0], [size, SHAPE[1]], f"rank:{rank}/cpu")
                for start, (size, rank) in zip(starts, sizes_and_ranks, strict=False)
            ]
        )

    by_two: Any = ["rank:0/cpu", "rank:1/cpu"]
    specs = {
        "rows": ChunkShardingSpec(0, by_two),
        "columns": ChunkShardingSpec(1, by_two),
        "four": ChunkShardingSpec(0, [*by_two, *reversed(by_two)]),
        "uneven": rows((2, 0), (1, 1), (3, 0), (3, 1), (1, 0)),
        "unlike": rows((8, 1), (2, 0)),
    }
    full = _whole()

    def of(spec: Any, source: torch.Tensor) -> Any:
        made = sharded_tensor.empty(spec, *SHAPE)
        for shard in made.local_shards():
            at, sizes = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(source[at[0] : at[0] + sizes[0], at[1] : at[1] + sizes[1]])
        return made

    storage, wrong = Storage(kind, Path(place)), []
    for before, saved in specs.items():
        save({"w": of(saved, full)}, storage_writer=storage.writer())
        for after, wanted in specs.items():
            into = {"w": of(wanted, torch.zeros(SHAPE))}
            load(into, storage_reader=storage.reader())
            same = zip(into["w"].local_shards(), of(wanted, full).local_shards(), strict=True)
            if not all(torch.equal(one.tensor, other.tensor) for one, other in same):
                wrong.append(f"{before} to {after}")
    return wrong


def save_in_other_orders(kind: str, place: str) -> list[str]:
    """Each rank has its names in an order of its own; return what did not come back."""
    storage = Storage(kind, Path(place))
    names = ["a", "b", "c"] if dist.get_rank() == 0 else ["c", "a", "b"]
    save({name: _placed(_whole(ord(name)), "rows") for name in names}, storage_writer=storage.writer())
    into = {name: _placed(torch.zeros(SHAPE), "columns") for name in reversed(names)}
    load(into, storage_reader=storage.reader())
    return [name for name in sorted(names) if not torch.equal(into[name].full_tensor(), _whole(ord(name)))]
