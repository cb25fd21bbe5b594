"""Nodes with stores of their own, each with one rank, in one process: what `torch.distributed.checkpoint` does by hand.

A rank can be killed at a request: from then on nothing that it does has an effect at the remote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from ckstore import CheckpointInfo, Store
from ckstore.errors import CkstoreError
from ckstore.integrations.dcp import CkstoreWriter
from ckstore.saver import helper_start
from tests.support.s3_server import BUCKET

MIB = 2**20


class Killed(BaseException):
    """A process ended here."""


def part(rank: int, step: int, nbytes: int = 2 * MIB) -> torch.Tensor:
    """Return what a rank has at a step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)


def node(path: Path, port: int, monkeypatch: Any) -> Store:
    """Return the store of a node whose mirror is the service on a port; no process mirrors it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    return Store.open_or_init(path, chunk_bytes=MIB, mirror=f"s3://{BUCKET}/run")


def save(
    stores: Sequence[Store],
    step: int,
    *,
    at: Callable[[str, int], object] = lambda _phase, _rank: None,
    state: Callable[[int], dict[str, Any]] | None = None,
    **options: Any,
) -> list[CheckpointInfo | None]:
    """Save as one rank of each store; return what each returns. `at` is called before each phase of a rank."""
    state = state or (lambda rank: {f"w{rank}": part(rank, step), "step": step})
    ranks = range(len(stores))
    writers = [CkstoreWriter(store, step, **options) for store in stores]
    planners = [DefaultSavePlanner() for _ in stores]
    try:
        plans = []
        for rank in ranks:
            writers[rank].set_up_storage_writer(rank == 0, rank=rank)
            planners[rank].set_up_planner(state(rank), is_coordinator=rank == 0)
            plans.append(writers[rank].prepare_local_plan(planners[rank].create_local_plan()))
        plans, metadata = planners[0].create_global_plan(plans)
        plans = writers[0].prepare_global_plan(plans)
        results = []
        for rank in ranks:
            at("part", rank)
            results.append(writers[rank].write_data(planners[rank].finish_plan(plans[rank]), planners[rank]).value())
        at("whole", 0)
        writers[0].finish(metadata, results)
        infos: list[CheckpointInfo | None] = []
        for rank in ranks:
            at("told", rank)
            infos.append(writers[rank].ended(metadata.storage_data))
        return infos
    finally:
        for writer in writers:
            with suppress(Killed, CkstoreError):
                writer.close()
