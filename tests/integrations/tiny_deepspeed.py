"""The example of DeepSpeed as a program that is killed, or that compares itself with a run without a stop.

KILL_AT STORE OUT; with 0 it says whether it ended with the weights and moments of such a run.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

import ckstore.ops.save.save  # noqa: F401 - it has its own name for what is replaced
from tests.integrations.tiny_trainer import kill_when_step_is_published

EXAMPLE = Path(__file__).parents[2] / "examples" / "deepspeed_run.py"


def main(kill_at: str, store: str, out: str) -> None:
    torch.set_num_threads(1)
    if int(kill_at):
        kill_when_step_is_published(int(kill_at))
    sys.argv = [str(EXAMPLE), store, out]
    made = runpy.run_path(str(EXAMPLE), run_name="__main__")
    again = made["engine"]
    whole = made["make"]()
    made["train"](whole)
    assert again.global_steps == whole.global_steps == made["STEPS"]
    assert (Path(out) / ".ckstore-resume-2").is_dir()  # the one after it is damaged
    for one, other in zip(again.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(one, other)
    states = [engine.optimizer.optimizer.state_dict()["state"] for engine in (again, whole)]
    assert states[0]
    for number, state in states[0].items():
        assert all(torch.equal(value, states[1][number][name]) for name, value in state.items())
    print(f"ENDED {again.global_rank}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
