"""What the ranks of `test_killed_trainings.py` do; each function runs on every rank of a group."""

from __future__ import annotations

import os
import random
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 - it and two below take seconds: once, before the ranks are forked
import numpy as np
import torch
import torch.distributed as dist
import transformers.trainer  # noqa: F401

import ckstore
import ckstore.ops.save.save
from ckstore import NoSuchRef, Store
from ckstore.training.processes import gather, is_first
from tests.integrations import tiny_accelerate, tiny_trainer

with suppress(ImportError):  # where it is, accelerate imports it
    import deepspeed  # noqa: F401

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(name: str, store: str, out: str, ref: str, kill_at: int | None, ranks: list[int]) -> None:  # noqa: PLR0917
    """Train as the function of this name does; some of the ranks may be killed in the save of a step."""
    _be_as_started()
    _kill_when_published(kill_at, ranks)
    _TRAININGS[name](store, out, ref)


def _be_as_started() -> None:
    """Have what programs find that torchrun has started, which join the group that is there; one alone has none."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        dist.destroy_process_group()
        return
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 1}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in given.items()}}
    dist.init_process_group = lambda *_, **__: None


def _kill_when_published(step: int | None, ranks: list[int]) -> None:
    """Have rank 0 kill these ranks, itself last, in the middle of the save of a step: all is written, not published."""
    pids = gather(os.getpid())
    if step is not None and is_first():
        tiny_trainer.kill_when_step_is_published(step, [pids[rank] for rank in sorted(ranks, reverse=True)])


def _trainer(store: str, out: str, ref: str) -> None:
    """Train with the Trainer of transformers, whose files are committed; its output directory keeps one."""
    _with_the_trainer("files", store, out, ref)


def _state(store: str, out: str, ref: str) -> None:
    """Train with the Trainer of transformers; the state is saved itself."""
    _with_the_trainer("state", store, out, ref)


def _with_the_trainer(saves: str, store: str, out: str, ref: str) -> None:
    options: dict[str, Any] = {"save_total_limit": 1} if saves == "files" else {}
    made = tiny_trainer.make(tiny_trainer.native(saves), Path(out), Store.open(store), **options)
    made.train(resume_from_checkpoint=ref or None)
    print(f"INEXACT {list(made.resumed_inexactly)}", flush=True)


def _accelerate(store: str, out: str, ref: str) -> None:
    """Train with accelerate."""
    _, kept = tiny_accelerate.train(Store.open(store), Path(out), ref, seedable=True, total_limit=1)
    print(f"INEXACT {list(kept.resumed_inexactly)}", flush=True)


def _unseeded(store: str, out: str, ref: str) -> None:
    """Resume from the last step of `accelerate` with a data loader that is shuffled by a generator of its own."""
    _, kept = tiny_accelerate.train(Store.open(store), Path(out), ref)
    print(f"INEXACT {list(kept.resumed_inexactly)}", flush=True)


def _loop(store: str, out: str, ref: str) -> None:
    """Run the example of a plain loop, on one process."""
    _example("plain_loop.py", store, out)


def _ddp(store: str, out: str, ref: str) -> None:
    """Run the example of `DistributedDataParallel`."""
    _example("ddp.py", store, out)


def _fsdp2(store: str, out: str, ref: str) -> None:
    """Run the example of FSDP2."""
    _example("fsdp2.py", store, out)


_TRAININGS = {"trainer": _trainer, "state": _state, "accelerate": _accelerate, "unseeded": _unseeded, "loop": _loop}
_TRAININGS |= {"ddp": _ddp, "fsdp2": _fsdp2}


def hand_over(store: str, steps: int) -> None:
    """Rank 0 trains an adapter and saves the weights; rank 1 serves them, and each time reads what has changed."""
    torch.manual_seed(1)
    model: Any = torch.nn.ModuleDict({"base": torch.nn.Linear(256, 256), "adapter": torch.nn.Linear(8, 8)})
    first = model["adapter"].weight.detach().clone()
    if is_first():
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


def _example(name: str, store: str, out: str) -> None:
    """Run an example, with the policy that the store has; it resumes by itself."""
    policy = Store.open(store).config.retention
    ckstore.RetentionPolicy = lambda **_: policy  # type: ignore[assignment,misc]
    random.seed(1)  # of Python and NumPy, which the example does not use
    np.random.seed(1)  # noqa: NPY002 - the global generator is what is captured
    sys.argv = [name, store, out]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
