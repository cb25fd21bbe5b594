"""A tiny run of the Trainer of transformers, in this process or as a program: STORE OUT RESUME KILL_AT SAVES."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from ckstore import Store

for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
STEPS = 6


def model() -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def make(cls: Any, folder: Path, store: Store | None = None, made: Any = None, **arguments: Any) -> Any:
    """Return a Trainer of the class, with dropout, so with random states that matter."""
    import torch
    from transformers import TrainingArguments

    rows = torch.randint(0, 50, (32, 16), generator=torch.Generator().manual_seed(2))
    options = {"max_steps": STEPS, "save_steps": 2, "per_device_train_batch_size": 4, "logging_steps": 1, **arguments}
    callbacks = options.pop("callbacks", None)
    trainer = cls(
        model=model() if made is None else made,
        args=TrainingArguments(
            output_dir=str(folder), report_to=[], use_cpu=True, seed=3, disable_tqdm=True, **options
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        eval_dataset=[{"input_ids": row, "labels": row} for row in rows[:4]],
        callbacks=callbacks,
    )
    if store is not None:
        trainer.ckstore = store
    return trainer


def mixed() -> Any:
    from transformers import Trainer

    from ckstore.integrations.transformers import CkstoreTrainerMixin

    return type("Mixed", (CkstoreTrainerMixin, Trainer), {})


def native(saves: str) -> Any:
    """Return a class of Trainers that saves its state itself."""
    return type("Native", (mixed(),), {"ckstore_saves": saves})


def kill_when_step_is_published(step: int, pids: list[int] | None = None) -> None:
    """Kill these processes, or this one, with -9 in the middle of the save of a step: all is written, not published."""
    from ckstore.objects import publish

    real = publish.publish

    def publishing(staging: Any, manifest: Any, *more: Any, **named: Any) -> Any:
        for pid in (pids or [os.getpid()]) if manifest.step == step else ():
            os.kill(pid, signal.SIGKILL)
        return real(staging, manifest, *more, **named)

    for module in list(sys.modules.values()):
        if getattr(module, "publish", None) is real and module.__name__.startswith("ckstore."):
            module.publish = publishing  # type: ignore[attr-defined]


def kill_when_step_is_on_its_way(step: int) -> None:
    """Kill this process with -9 when a save in the background has begun: its saver may make it or not."""
    real = Store.save_async

    def saving(self: Store, state: object, at: int | None = None, *arguments: Any, **options: Any) -> Any:
        pending = real(self, state, at, *arguments, **options)
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return pending

    Store.save_async = saving  # type: ignore[method-assign,assignment]


def main(store: str, out: str, resume: str, kill_at: str, saves: str = "files") -> None:
    import torch

    import ckstore.ops.save.save  # noqa: F401 - it has its own name for what is replaced

    torch.set_num_threads(1)
    if saves == "background":
        kill_when_step_is_on_its_way(int(kill_at))
    elif int(kill_at):
        kill_when_step_is_published(int(kill_at))
    trainer = make(native(saves), Path(out), Store.open(store))
    trainer.train(resume_from_checkpoint=resume or None)
    print(f"ENDED {trainer.state.global_step} {list(trainer.resumed_inexactly)}")
    sys.stdout.flush()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
