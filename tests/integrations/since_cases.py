"""The functions that `test_dcp_since.py` runs on every rank of a group."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from ckstore import RetentionPolicy, Store
from ckstore.integrations import dcp as ours
from tests.support.torch_versions import distribute

ROWS, COLUMNS = 2048, 512  # 4 MiB: a chunk for each of four ranks
_NAMES = ("a", "b")


def _values(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))


def _placed(value: torch.Tensor, dim: int | None) -> DTensor:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute(value.clone(), mesh, Replicate() if dim is None else Shard(dim))


def _same(found: Any, wanted: torch.Tensor) -> bool:
    if isinstance(found, DTensor):
        dim = next((one.dim for one in found.placements if isinstance(one, Shard)), None)
        found, wanted = found.to_local(), _placed(wanted, dim).to_local()
    return torch.equal(found, wanted.to(found.dtype))


def _read_by_this_process() -> int:
    return int(Path("/proc/self/io").read_text("ascii").split()[1])


def change_one_shard(store: str, dim: int, rank: int) -> list[tuple[int, int]]:
    """Change the shard of one rank; return what is read of all values, of that step, and of an equal one."""
    opened = Store.open(store)
    values = {name: _values(seed) for seed, name in enumerate(_NAMES)}
    target: dict[str, Any] = {name: _placed(torch.zeros(ROWS, COLUMNS), dim) for name in _NAMES} | {"step": 0}
    report, counted = None, []
    for step in (1, 2, 3):
        if step == 2:
            width = (ROWS, COLUMNS)[dim] // dist.get_world_size()
            values["b"].narrow(dim, rank * width, width)[0, 0] += 1
        ours.save(opened, {name: _placed(value, dim) for name, value in values.items()} | {"step": step}, step)
        before = _read_by_this_process()
        report = ours.load(opened, target, step, since=report)
        counted.append((report.read_bytes, _read_by_this_process() - before))
        assert target["step"] == step
        assert all(_same(target[name], value) for name, value in values.items())
    return counted


def follow(store: str, run: str, seed: int, rounds: int) -> list[int]:
    """Save changed values with any placement, and load each step on top of the last one; return what was read."""
    draw = random.Random(seed)
    opened = Store.open(store)
    history = [{name: _values(draw.randrange(100)) for name in _NAMES}]
    saved: dict[str, int | None] = dict.fromkeys(_NAMES, 0)
    dtype = draw.choice([torch.float32, torch.float64])
    target: dict[str, Any] = {
        "a": draw.choice(
            [_placed(torch.zeros(ROWS, COLUMNS), draw.choice([0, 1, None])), torch.zeros(COLUMNS, ROWS).T]
        ),
        "b": _placed(torch.zeros(ROWS, COLUMNS, dtype=dtype), draw.choice([0, 1])),
    }
    since: Any = None
    counted = []
    for step in range(1, rounds + 1):
        values = {name: value.clone() for name, value in history[-1].items()}
        act = draw.choice(["rows", "columns", "all", "none", "back", "placement"])
        name = draw.choice(_NAMES)
        at = draw.randrange(COLUMNS - 5)
        if act == "rows":
            values[name][at : at + 5] += 1
        elif act == "columns":
            values[name][:, at : at + 5] += 1
        elif act == "all":
            values[name] += 1
        elif act == "back":
            values = draw.choice(history)
        elif act == "placement":
            saved[name] = draw.choice([0, 1, None])
        history.append(values)
        info = ours.save(opened, {name: _placed(value, saved[name]) for name, value in values.items()}, step, run)
        report = ours.load(opened, target, info, since=since)
        since = draw.choice([report, info])
        counted.append(report.read_bytes)
        assert all(_same(target[name], value) for name, value in values.items()), (step, act, name)
        if act == "none" and step > 1:
            assert report.read_bytes == 0
    return counted


def load_after_damage(store: str) -> tuple[int, bool]:
    """Load ``latest-valid`` with since; the newest checkpoint is damaged, so the target gets the one before it."""
    opened = Store.open(store)
    target: dict[str, Any] = {name: _placed(torch.zeros(ROWS, COLUMNS), 0) for name in _NAMES}
    report = ours.load(opened, target, 1)
    report = ours.load(opened, target, "latest-valid", since=report)
    wanted = {name: _values(seed) for seed, name in enumerate(_NAMES)}
    return report.info.step, all(_same(target[name], value) for name, value in wanted.items())


def save_values(store: str, step: int, added: float) -> Any:
    values = {name: _values(seed) + added for seed, name in enumerate(_NAMES)}
    return ours.save(Store.open(store), {name: _placed(value, 0) for name, value in values.items()}, step).id


def load_dropped(store: str) -> list[int]:
    """Load on top of a checkpoint that retention has dropped: the report of its load is enough, its name is not."""
    opened = Store.open(store)
    if dist.get_rank() == 0:
        opened.config.retention = RetentionPolicy(keep_last=1)
    dist.barrier()
    target: dict[str, Any] = {name: _placed(torch.zeros(ROWS, COLUMNS), 0) for name in _NAMES}
    save_values(store, 1, 0.0)
    first = report = ours.load(opened, target, 1)
    counted = [report.read_bytes]
    save_values(store, 2, 0.0)
    dist.barrier()
    report = ours.load(opened, target, 2, since=report)
    counted.append(report.read_bytes)
    ours.load(opened, target, 2, since=first.info)
    return counted


def load_since_another_part(store: str) -> Any:
    """Pass the report of a load of a part."""
    opened = Store.open(store)
    target: dict[str, Any] = {name: _placed(torch.zeros(ROWS, COLUMNS), 0) for name in _NAMES}
    part = opened.load_into({"a": torch.zeros(ROWS, COLUMNS)}, 1, select="a")
    return ours.load(opened, target, 1, since=part)


def load_a_part_then_all(store: str) -> bool:
    """Load what fits, and then all on top of it: what did not fit before is read."""
    opened = Store.open(store)
    part: dict[str, Any] = {"a": _placed(torch.zeros(ROWS, COLUMNS), 0)}
    report = ours.load(opened, part, 1, strict=False)
    target = part | {"b": _placed(torch.zeros(ROWS, COLUMNS), 0)}
    again = ours.load(opened, target, 1, since=report)
    read_half = again.read_bytes == report.read_bytes
    return read_half and all(_same(target[name], _values(seed)) for seed, name in enumerate(_NAMES))


def load_twice_by_one_reader(store: str) -> bool:
    """Load by torch's own call: `since` is about the tensors of the first load, and not those of the next one."""
    opened = Store.open(store)
    targets = [{name: _placed(torch.zeros(ROWS, COLUMNS), 0) for name in _NAMES} for _ in range(2)]
    report = ours.load(opened, targets[0], 1)
    reader = ours.CkstoreReader(opened, 1, since=report)
    dcp_load(targets[0], storage_reader=reader)
    read_nothing = reader.read_bytes == 0
    dcp_load(targets[1], storage_reader=reader)
    return read_nothing and all(_same(one[name], _values(i)) for one in targets for i, name in enumerate(_NAMES))


def same_pieces_at_other_places(store: str) -> int:
    """Save rows, and then another tensor by columns, so that its pieces have the same digests in the same order."""
    opened, size = Store.open(store), dist.get_world_size()
    first = _values(0)[:512]
    second = torch.cat([rows.reshape(512, -1) for rows in first.chunk(size)], dim=1)
    target = {"w": _placed(torch.zeros(512, 512), 1)}
    ours.save(opened, {"w": _placed(first, 0)}, 1)
    report = ours.load(opened, target, 1)
    info = ours.save(opened, {"w": _placed(second, 1)}, 2)
    assert info.new_bytes < 2**16  # the same blobs
    report = ours.load(opened, target, 2, since=report)
    assert _same(target["w"], second)
    return report.read_bytes


def convert(store: str) -> int:
    """Load into float64 on top of a step of which one piece differs."""
    opened = Store.open(store)
    values = {name: _values(seed) for seed, name in enumerate(_NAMES)}
    target = {name: torch.zeros(ROWS, COLUMNS, dtype=torch.float64) for name in _NAMES}
    report = ours.load(opened, target, 1)
    values["b"][0, 0] += 1
    ours.save(opened, {name: _placed(value, 0) for name, value in values.items()}, 2)
    report = ours.load(opened, target, 2, since=report)
    assert all(_same(target[name], value) for name, value in values.items())
    return report.read_bytes


def save_model(store: str, step: int, dim: int, rank: int) -> None:
    """Save two tensors of 16 MiB. In step 2, one value of a shard of the second one is another one."""
    values = {name: _values(seed).repeat(4, 1) for seed, name in enumerate(_NAMES)}
    if step == 2:
        width = values["b"].shape[dim] // dist.get_world_size()
        values["b"].narrow(dim, rank * width, width)[1, 1] += 1
    ours.save(store, {"model": {name: _placed(value, dim) for name, value in values.items()}, "step": step}, step)


def save_cube(store: str, step: int) -> None:
    """Save a tensor cut in its second dimension, or another one cut in its last, whose pieces have the same bytes."""
    cube, size = torch.zeros(512, 32, 32), dist.get_world_size()
    cube[3::50, 9, 5] = 1.0
    if step == 2:
        cube = torch.cat([part.reshape(512, 32, -1) for part in cube.chunk(size, dim=1)], dim=2)
    info = ours.save(store, {"model": {"w": _placed(cube, step)}}, step)
    assert step == 1 or info.new_bytes < 2**16  # the same blobs
