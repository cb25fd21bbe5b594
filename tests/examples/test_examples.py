"""Each example runs as a user runs it, and leaves its checkpoints in the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckstore import Store
from tests.support.requirements import CRASH_FULL, require_transformers

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = {
    "plain_loop.py": [3, 4, 5],
    "async_loop.py": [3, 4, 5],
    "ddp.py": [1, 2, 3],
    "fsdp2.py": [4, 6, 8],
    "trainer.py": [2, 4, 6],
    "accelerate_loop.py": [0, 1, 2],
    "lightning_run.py": [8, 16, 24],
    "deepspeed_run.py": [2, 4, 6],
}
ON_TWO_RANKS = ("ddp.py", "fsdp2.py")


# plain_loop.py has a test of its own here, deepspeed_run.py one in tests/integrations/test_deepspeed.py, and fsdp2.py
# is run, killed and compared in tests/integrations/test_killed_trainings.py.
ELSEWHERE = {"plain_loop.py", "deepspeed_run.py", *(() if CRASH_FULL else ("fsdp2.py",))}


def run(name: str, folder: Path) -> str:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if name in ON_TWO_RANKS else []
    words = [sys.executable, *launch, str(EXAMPLES / name), str(folder / "store"), str(folder / "out")]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, **offline}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(STEPS)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name in STEPS if name not in ELSEWHERE])
def test_an_example_runs_and_its_checkpoints_are_in_the_store(name: str, tmp_path: Path) -> None:
    require_transformers()
    run(name, tmp_path)

    with Store.open(tmp_path / "store", readonly=True) as store:
        assert [info.step for info in store.checkpoints()] == STEPS[name]


@pytest.mark.slow
def test_the_plain_loop_goes_on_where_it_was(tmp_path: Path) -> None:
    run("plain_loop.py", tmp_path)
    with Store.open(tmp_path / "store") as store:
        assert [info.step for info in store.checkpoints()] == STEPS["plain_loop.py"]
        store.delete(5)

    assert "main@4 restored" in run("plain_loop.py", tmp_path)
