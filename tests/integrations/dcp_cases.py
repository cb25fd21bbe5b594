"""What the ranks of `test_dcp*.py` do; each function runs on every rank of a group."""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import io
import os
import pickle
import threading
import time
import warnings
from pathlib import Path
from traceback import StackSummary
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from ckstore import CheckpointInfo, CkstoreWarning, RankMismatch, Store
from ckstore.integrations import dcp as ours
from ckstore.integrations.dcp import writer as writer_module
from ckstore.training.processes import once_for_all
from tests.support.torch_versions import distribute, in_background, without_group


def _trained(steps: int, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(51, 16), nn.Linear(16, 33), nn.LayerNorm(33), nn.Linear(33, 7, bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        out = model(torch.randint(0, 51, (8, 5), generator=generator))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optim": optimizer_state, "epoch": 3, "name": "a run", "betas": (0.9, 0.95)}


def _full(value: Any) -> Any:
    if isinstance(value, DTensor):
        return value.full_tensor().clone()
    if isinstance(value, dict):
        return {key: _full(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_full(item) for item in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def digest(value: Any) -> Any:
    """Return what tells whether two states are the same, bit for bit."""
    if isinstance(value, torch.Tensor):
        data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), hashlib.sha256(data).hexdigest()
    if isinstance(value, dict):
        return {key: digest(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [digest(item) for item in value]
    return value


def save_fsdp(store: str, step: int) -> Any:
    model, optimizer = _trained(3)
    state = _state(model, optimizer)
    info = ours.save(store, state, step, metrics={"loss": 1.5})
    return digest(_full(state)), info.id


def load_fsdp(store: str, step: int) -> Any:
    model, optimizer = _trained(1, seed=7)
    state = {**_state(model, optimizer), "epoch": 0, "name": "", "betas": (0.0, 0.0)}
    ours.load(store, state, step)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    again = {**state, **_state(model, optimizer), "epoch": state["epoch"], "name": state["name"]}
    again["betas"] = state["betas"]
    return digest(_full(again))


def whole(name: str) -> torch.Tensor:
    shapes = {"odd": (37, 12), "wide": (64, 48), "cube": (6, 10, 24), "line": (101,), "scalar": ()}
    generator = torch.Generator().manual_seed(len(name) * 7 + 1)
    return torch.randn(shapes[name], generator=generator)


PLACED = {"odd": 0, "wide": 1, "cube": 2, "line": 0, "scalar": None}


def _sharded(dims: dict[str, int | None], *, zeros: bool = False) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {}
    for name, dim in dims.items():
        full = whole(name)
        placement = Replicate() if dim is None else Shard(dim)
        mine = torch.zeros_like(full) if zeros else full
        # Every rank has the whole: nothing is sent, so that a rank that is killed here cannot fail the others here.
        state[name] = distribute(mine, mesh, placement)
    return state


def save_shards(store: str, step: int, run: str = "main", dims: dict[str, int | None] | None = None) -> Any:
    info = ours.save(store, {"model": _sharded(dims or PLACED), "lr": 0.5}, step, run)
    return info.id, info.new_bytes


def load_shards(store: str, step: int, dims: dict[str, int | None] | None = None) -> Any:
    state = {"model": _sharded(dims or PLACED, zeros=True), "lr": 0.0}
    ours.load(store, state, step)
    full = _full(state)
    return state["lr"] == 0.5 and all(torch.equal(full["model"][name], whole(name)) for name in PLACED)


def let_go() -> None:
    """Close what stores of earlier calls have open, so that their filesystem can be unmounted."""
    gc.collect()


def save_at(store: str, run: str, step: int) -> Any:
    return ours.save(store, {"w": _sharded({"odd": 0})["odd"]}, step, run).id


def save_raw(store: str, step: int, caching: bool = False) -> Any:
    writer = ours.CkstoreWriter(store, step)
    planner = DefaultSavePlanner(**({"enable_plan_caching": True} if caching else {}))
    dcp_save({"w": _sharded({"odd": 0})["odd"], "step": step}, storage_writer=writer, planner=planner)
    return None if writer.info is None else writer.info.id


def save_async(store: str, step: int, process: bool) -> Any:
    group = dist.new_group(backend="gloo") if not process else None
    state = {"model": _sharded(PLACED), "lr": 0.5}
    ours.async_save(store, state, step, process_group=group, **in_background(process=process)).result()
    return True


def send_meanwhile(store: str) -> Any:
    """Return the parents in a writer that torch sends to its process after step 1 was loaded.

    Step 2 was loaded before the call. The second result shows whether two loads of step 2 are told apart.
    """
    opened = Store.open(store)

    def sent() -> Any:
        opened.load(2)
        writer = ours.CkstoreWriter(opened, 3, "main")
        writer.called()
        opened.load(1)
        return pickle.loads(pickle.dumps(writer))._continues

    first, second = sent(), sent()
    return [first["main"].id, first[""].id, first != second]


def load_meanwhile(store: str, loading: list[int], meanwhile: bool = False) -> Any:
    """Load step 2 on some ranks, save step 3 behind the call, load step 1 meanwhile, and save step 4.

    With `meanwhile`, rank 0 saves step 5 before step 3.

    Return the parents of both.
    """
    opened, go, real = Store.open(store), threading.Event(), writer_module._stage

    def load(step: int) -> None:
        if dist.get_rank() in loading:
            opened.load(step)

    def stage(*given: Any, **options: Any) -> Any:
        assert go.wait(60)
        return real(*given, **options)

    group = dist.new_group(backend="gloo")
    load(2)
    with patch.object(writer_module, "_stage", stage):
        saving = ours.async_save(opened, {"w": torch.full((3,), 3.0)}, 3, process_group=group)
        load(1)
        if meanwhile and not dist.get_rank():
            opened.save({"w": torch.full((3,), 5.0)}, 5)
        go.set()
        saving.result()
        second = ours.save(opened, {"w": torch.full((3,), 4.0)}, 4)
    return [opened.info(3).parent, second.parent]


def fail_at(store: str, step: int, rank: int, number: int) -> Any:
    """Save while each write of a blob fails at one rank."""
    from ckstore.fs import files

    real = files.create_blob

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, errno.errorcode[number])

    if dist.get_rank() == rank:
        files.create_blob = failing
    try:
        return ours.save(
            store, {"w": torch.full((4, 4), float(step)), "s": _sharded({"odd": 0})["odd"] + step}, step
        ).id
    finally:
        files.create_blob = real


def save_patiently(store: str, step: int, rank: int, times: int, bad: bool = False, **about: Any) -> Any:
    """Save while the first writes of blobs fail at one rank, or at none; return the id, or what stands for it."""
    from ckstore.fs import files

    real, left = files.create_blob, [times if dist.get_rank() == rank else 0]

    def failing(*given: Any, **more: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*given, **more)

    files.create_blob = failing
    shards = _sharded({"odd": 0})["odd"] + step
    state = {"w": torch.full((4, 4), float(step)), "s": shards, **({"bad": object()} if bad else {})}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            saved = ours.save(Store.open(store), state, step, **about)
        return saved.id if isinstance(saved, CheckpointInfo) else [saved.name, saved.in_a_row, str(saved.error)]
    finally:
        files.create_blob = real


def save_odd_value(store: str, step: int) -> Any:
    return ours.save(store, {"a": {"b": object()}, "w": torch.ones(2)}, step).id


def save_late(store: str, step: int, late_s: float = 0.0, bad: bool = False) -> Any:
    """Save what differs from step to step; a rank may come late, or with a value that cannot be stored."""
    time.sleep(late_s)
    state = {"w": _sharded({"odd": 0})["odd"] + step, "same": _sharded({"wide": 0})["wide"], "step": step}
    return ours.save(store, {**state, "bad": object()} if bad else state, step).id


class Counter:
    """A `Stateful`."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"count": 1, "t": torch.arange(5)}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def stateful(store: str, step: int) -> Any:
    saved = Counter()
    saved.state = {"count": 41, "t": torch.arange(5) * 3}
    ours.save(store, {"counter": saved}, step)
    loaded = Counter()
    ours.load(store, {"counter": loaded}, step)
    return loaded.state["count"], loaded.state["t"].tolist()


class Odd(Exception):
    """An error that comes back from no pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two} do not go together")


class Breaking(Counter):
    """A `Stateful` that raises at one rank."""

    def __init__(self, rank: int, where: str, error: BaseException) -> None:
        super().__init__()
        self.rank, self.where, self.error = rank, where, error

    def _break(self, where: str) -> None:
        if (dist.get_rank(), where) == (self.rank, self.where):
            raise self.error

    def state_dict(self) -> dict[str, Any]:
        self._break("save")
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._break("load")
        super().load_state_dict(state)


def save_breaking(store: str, step: int, rank: int, odd: bool = False, in_background: bool = False) -> Any:
    """Save while the `state_dict` of an object raises at one rank."""
    state = {"counter": Breaking(rank, "save", Odd(3, 4) if odd else ValueError("boom in state_dict"))}
    if not in_background:
        return ours.save(store, state, step).id
    return ours.async_save(store, state, step, process_group=dist.new_group(backend="gloo")).result()


def _of_torch() -> CheckpointException:
    return CheckpointException("in vain", {0: (ValueError("no"), StackSummary())})


def save_in_vain(store: str, step: int, rank: int, in_background: bool) -> Any:
    """Save while the `state_dict` of an object raises what `torch.distributed.checkpoint` does, at one rank."""
    state = {"counter": Breaking(rank, "save", _of_torch())}
    if not in_background:
        return ours.save(store, state, step).id
    return ours.async_save(store, state, step, process_group=dist.new_group(backend="gloo")).result()


def rank_zero_in_vain() -> Any:
    """Have rank 0 do what fails so, as integrations do; the others wait for it."""

    def work() -> None:
        raise _of_torch()

    try:
        return once_for_all(work)
    except BaseException as error:
        return repr(error)


def load_breaking(store: str, step: int, rank: int, where: str) -> Any:
    """Load while an object raises at one rank, when it is asked for its state or given it."""
    ours.load(store, {"counter": Breaking(rank, where, ValueError("boom at the load"))}, step)


def save_given(store: str, **given: Any) -> Any:
    return ours.save(store, {"w": torch.ones(3)}, **given).id


def save_after(store: str, step: int, late_s: float, inside: bool) -> Any:
    """Save after a while, or with a state that takes that long."""

    class Slow(Counter):
        def state_dict(self) -> dict[str, Any]:
            time.sleep(late_s)
            return super().state_dict()

    if not inside:
        time.sleep(late_s)
    return ours.save(store, {"counter": Slow() if inside else Counter()}, step).id


def load_other(store: str, step: int, strict: bool) -> Any:
    """Load into what fits in part: a name more, another shape, another kind, another dtype, and some names less."""
    state: dict[str, Any] = {
        "model": {
            "odd": torch.zeros(37, 12, dtype=torch.float64),
            "wide": torch.ones(64, 49),
            "more": torch.ones(3),
            "line": 7,
        },
        "epoch": 3,
    }
    try:
        return ours.load(store, state, step, strict=strict)
    finally:
        model = state["model"]
        untouched = [model["wide"].eq(1).all(), model["more"].eq(1).all(), model["line"] == 7, state["epoch"] == 3]
        assert all(untouched)
        assert torch.equal(model["odd"], torch.zeros(37, 12) if strict else whole("odd").double())


def load_nothing_that_fits(store: str, step: int) -> Any:
    return ours.load(store, {"head": torch.ones(3 + dist.get_rank())}, step, strict=False)


def load_part(store: str, step: int) -> int:
    reader = ours.CkstoreReader(store, step)
    dcp_load({"model": {"odd": torch.zeros(37, 12)}}, storage_reader=reader)
    return reader.read_bytes


def kept_files(store: str) -> list[str]:
    return sorted(path.name for path in (Path(store) / "staging").iterdir())


def cached_then_changed(store: str) -> Any:
    return [save_raw(store, step, caching=True) for step in (1, 2, 3)]


def large(store: str, step: int, rows: int, columns: int, dim: int = 0) -> Any:
    """Save a tensor whose values do not depend on the number of ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    full = torch.arange(rows * columns, dtype=torch.int32).reshape(rows, columns)
    info = ours.save(store, {"w": distribute_tensor(full, mesh, [Shard(dim)])}, step, if_exists="replace")
    return info.new_bytes, info.logical_bytes


def peer_loses_an_error(folder: str) -> str:
    """Save with the writer of torch, two threads, of which the second fails."""
    from torch.distributed.checkpoint import filesystem

    real = filesystem._write_item

    def failing(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, "no space")
        return real(*args, **kwargs)

    filesystem._write_item = failing
    try:
        writer = filesystem.FileSystemWriter(folder, thread_count=2)
        state = {f"{name}{dist.get_rank()}": torch.ones(4) for name in "abcd"}
        with contextlib.redirect_stderr(io.StringIO()):
            dcp_save(state, storage_writer=writer)
    finally:
        filesystem._write_item = real
    return "saved"


def peer_scatters(folder: str, clock: int) -> bool:
    """Save with the writer of torch into a directory that the rank names by its clock."""
    dcp_save({"w": _sharded({"odd": 0})["odd"]}, checkpoint_id=f"{folder}/step-{clock}")
    return True


def peer_loads(folder: str) -> bool:
    """Load what the peer saved, as all ranks or as one process."""
    state = {"w": torch.zeros_like(whole("odd"))}
    dcp_load(state, checkpoint_id=folder, **without_group(dcp_load))
    return torch.equal(state["w"], whole("odd"))


def save_on_a_disk_that_hangs(store: str, step: int, rank: int, where: str) -> Any:
    """Save while the disk of one rank does not answer: when its part is staged, or when all is published."""
    from ckstore.fs import files
    from ckstore.ranks import work

    go_on = threading.Event()
    real = getattr(files, where)

    def hanging(*arguments: Any, **options: Any) -> Any:
        go_on.wait(60)
        return real(*arguments, **options)

    if dist.get_rank() == rank:
        setattr(files, where, hanging)
    work._QUIET_S = 0.5
    try:
        return ours.save(store, {"w": _sharded({"odd": 0})["odd"] + step}, step).id
    finally:
        setattr(files, where, real)
        go_on.set()


def save_stages(store: str, step: int) -> Any:
    """Save as pipeline parallelism does: each rank has names of its own."""
    return ours.save(store, {f"stage.{dist.get_rank()}": {"w": torch.ones(3) + dist.get_rank()}}, step).id


def load_stages(store: str, step: int, count: int, strict: bool = True) -> Any:
    """Load so many of the stages; a rank that has none of its own loads the first."""
    stage = min(dist.get_rank(), count - 1)
    state = {f"stage.{stage}": {"w": torch.zeros(3)}}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = ours.load(store, state, step, strict=strict)
    assert torch.equal(state[f"stage.{stage}"]["w"], torch.ones(3) + stage)
    return report, [str(one.message) for one in told if issubclass(one.category, CkstoreWarning)]


def own_value(kind: str, differs: bool) -> Any:
    """Return a value of a kind: that of this rank, or the same for all."""
    number = dist.get_rank() if differs else 5
    generator = torch.Generator().manual_seed(number)
    values: dict[str, Any] = {
        "a random state": generator.get_state(),
        "a view with gaps": torch.arange(8).reshape(4, 2)[:, 0] + number,
        "a scalar of bfloat16": torch.tensor(number, dtype=torch.bfloat16),
        "a complex conjugate": torch.tensor([1j * number]).conj(),
        "a number": number,
        "a nested tuple": {"x": [(1, ("a", float(number)))]},
        "an array": [np.arange(3000) + number],
        "a long list": {"order": [*range(number, number + 2000)]},
        "a large tensor": torch.full((2**20,), number, dtype=torch.int16),
        "a shard": _sharded({"odd": 0})["odd"] + number,
    }
    return values[kind]


class _CountingPlanner(DefaultSavePlanner):
    """Counts the values that were asked for, each of which is then written."""

    resolved_count = 0

    def resolve_data(self, write_item: Any) -> Any:
        self.resolved_count += 1
        return super().resolve_data(write_item)


def refused_late(store: str, caching: bool) -> Any:
    """Save twice, the second time with other values on each rank; return the error, and how many values were read."""
    options: dict[str, Any] = {"enable_plan_caching": True} if caching else {}
    ours.save(store, {"own": 5, "w": torch.ones(3)}, 1, planner=_CountingPlanner(**options))
    planner = _CountingPlanner(**options)
    try:
        ours.save(store, {"own": dist.get_rank(), "w": torch.ones(3)}, 2, planner=planner)
    except RankMismatch as error:
        return str(error), planner.resolved_count
    return "", planner.resolved_count


def save_values(store: str, step: int, kind: str, differs: bool, background: bool = False, **options: Any) -> Any:
    """Save a value under one name, and others under a name of each rank; return the warnings."""
    state = {"own": own_value(kind, differs), f"of.{dist.get_rank()}": dist.get_rank(), "w": torch.ones(3)}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if background:
            group = dist.new_group(backend="gloo")
            ours.async_save(store, state, step, process_group=group, **options).result()
        else:
            ours.save(store, state, step, **options)
    said = [str(one.message) for one in told if issubclass(one.category, CkstoreWarning)]
    return [one for one in said if "power cut" not in one]


def save_states(store: str, step: int, states: list[Any], **options: Any) -> Any:
    """Save a given state for each rank."""
    return ours.save(store, states[dist.get_rank()], step, **options).id


def load_states(store: str, ref: str, states: list[Any]) -> Any:
    """Load into a given state for each rank."""
    ours.load(store, states[dist.get_rank()], ref)
    return states[dist.get_rank()]
