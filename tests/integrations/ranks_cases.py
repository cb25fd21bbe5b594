"""What the ranks of `test_killed_trainings.py` do; each function runs on every rank of a group."""

from __future__ import annotations

import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ckstore
import ckstore.ops.save.save
from ckstore import NoSuchRef, Store
from ckstore.training.processes import of_all_ranks, rank_and_world
from tests.integrations import tiny_accelerate, tiny_trainer

EXAMPLES = Path(__file__).parents[2] / "examples"


def _kill_when_published(step: int | None, ranks: list[int]) -> None:
    """Have rank 0 kill these ranks, itself last, in the middle of the save of a step: all is written, not published."""
    pids = of_all_ranks(os.getpid())
    if step is not None and rank_and_world()[0] == 0:
        tiny_trainer.kill_when_step_is_published(step, [pids[rank] for rank in sorted(ranks, reverse=True)])


def trainer(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Train with the Trainer of transformers, whose files are committed; its output directory keeps one."""
    _trainer("files", store, out, ref, kill_at, ranks)


def state(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Train with the Trainer of transformers; the state is saved itself."""
    _trainer("state", store, out, ref, kill_at, ranks)


def _trainer(saves: str, store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:  # noqa: PLR0917
    _kill_when_published(kill_at, ranks)
    options: dict[str, Any] = {"save_total_limit": 1} if saves == "files" else {}
    made = tiny_trainer.make(tiny_trainer.native(saves), Path(out), Store.open(store), **options)
    made.train(resume_from_checkpoint=ref or None)
    print(f"INEXACT {list(made.resumed_inexactly)}", flush=True)


def accelerate(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Train with accelerate."""
    _kill_when_published(kill_at, ranks)
    _, kept = tiny_accelerate.train(Store.open(store), Path(out), ref, seedable=True, total_limit=1)
    print(f"INEXACT {list(kept.resumed_inexactly)}", flush=True)


def unseeded(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Resume from the last step of `accelerate` with a data loader that is shuffled by a generator of its own."""
    _, kept = tiny_accelerate.train(Store.open(store), Path(out), ref)
    print(f"INEXACT {list(kept.resumed_inexactly)}", flush=True)


def loop(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Run the example of a plain loop, on one process."""
    _example("plain_loop.py", store, out, kill_at, ranks)


def ddp(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Run the example of `DistributedDataParallel`."""
    _example("ddp.py", store, out, kill_at, ranks)


def fsdp2(store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:
    """Run the example of FSDP2."""
    _example("fsdp2.py", store, out, kill_at, ranks)


def hand_over(store: str, steps: int) -> None:
    """Rank 0 trains an adapter and saves the weights; rank 1 serves them, and each time reads what has changed."""
    torch.manual_seed(1)
    model: Any = torch.nn.ModuleDict({"base": torch.nn.Linear(256, 256), "adapter": torch.nn.Linear(8, 8)})
    first = model["adapter"].weight.detach().clone()
    if rank_and_world()[0] == 0:
        opened = Store.open(store)
        for step in range(1, steps + 1):
            with torch.no_grad():
                model["adapter"].weight.add_(1)
            opened.save({"model": model}, step=step, run="policy", if_exists="replace")
        return
    with torch.no_grad():
        model["base"].weight.zero_()
    report, read_bytes, last = None, [], 0
    opened = Store.open(store, readonly=True)
    with opened.follow("policy", timeout_s=120) as new:
        for info in new:
            try:
                report = opened.load_into({"model": model}, info, since=report)
            except NoSuchRef:
                continue
            read_bytes.append(report.read_bytes)
            wanted = first
            for _ in range(info.step):
                wanted = wanted + 1
            assert torch.equal(model["adapter"].weight, wanted)
            assert info.step > last
            last = info.step
            if last == steps:
                break
    whole = model["base"].weight.nbytes
    assert last == steps
    assert read_bytes[0] >= whole
    assert all(later < whole // 8 for later in read_bytes[1:]), read_bytes
    assert torch.count_nonzero(model["base"].weight)


def _example(name: str, store: str, out: str, kill_at: int | None, ranks: list[int]) -> None:
    """Run an example, with the policy that the store has; it resumes by itself."""
    _kill_when_published(kill_at, ranks)
    policy = Store.open(store).config.retention
    ckstore.RetentionPolicy = lambda **_: policy  # type: ignore[assignment,misc]
    random.seed(1)  # of Python and NumPy, which the example does not use
    np.random.seed(1)  # noqa: NPY002 - the global generator is what is captured
    sys.argv = [name, store, out]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
