"""Each example runs as a user runs it, and leaves its checkpoints in the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckstore import Store
from tests.support.requirements import representatives, require_transformers

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
    "rollout.py": [0, 1, 2, 3],
}
OF_ENGINES = ("sglang_publish.py", "vllm_weights.py")  # tests/weights/test_engines.py
ON_TWO_RANKS = ("ddp.py", "fsdp2.py")


# plain_loop.py has a test of its own here, deepspeed_run.py one in tests/integrations/test_deepspeed.py, rollout.py in
# tests/remote/test_rollout.py; those on two ranks are run, killed and compared in
# tests/integrations/test_killed_trainings.py.
HERE = [name for name in STEPS if name not in ("plain_loop.py", "deepspeed_run.py", "rollout.py")]


def run(warm: Path, name: str, folder: Path) -> str:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if name in ON_TWO_RANKS else []
    python = sys.executable if launch else warm / "python"
    words = [python, *launch, EXAMPLES / name, folder / "store", folder / "out"]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, **offline}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*STEPS, *OF_ENGINES}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", representatives(HERE, *(name for name in HERE if name not in ON_TWO_RANKS)))
def test_an_example_runs_and_its_checkpoints_are_in_the_store(name: str, tmp_path: Path, warm: Path) -> None:
    require_transformers()
    run(warm, name, tmp_path)

    with Store.open(tmp_path / "store", readonly=True) as store:
        assert [info.step for info in store.checkpoints()] == STEPS[name]


@pytest.mark.slow
def test_the_plain_loop_goes_on_where_it_was(tmp_path: Path, warm: Path) -> None:
    run(warm, "plain_loop.py", tmp_path)
    with Store.open(tmp_path / "store") as store:
        assert [info.step for info in store.checkpoints()] == STEPS["plain_loop.py"]
        store.delete(5)

    assert "main@4 restored" in run(warm, "plain_loop.py", tmp_path)
