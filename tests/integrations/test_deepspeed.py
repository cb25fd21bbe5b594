"""DeepSpeed: its own classes without an engine, and the example with the real one, killed and resumed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckstore import Store
from tests.support.damage import blobs_by_size, flip
from tests.support.look import files_of
from tests.support.requirements import require

_PROGRAM = """
import os, sys, warnings
from types import SimpleNamespace
import torch
from pathlib import Path
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo
from ckstore import BadInput, Store
from ckstore.integrations.deepspeed import install, load

group = {"params": [], "lr": 0.1}
class Engine:  # what of deepspeed.DeepSpeedEngine is used
    optimizer, lr_scheduler = SimpleNamespace(param_groups=[group]), None
    _config = SimpleNamespace(
        checkpoint_config={"checkpoint_serialization": True},
        train_batch_size=4,
        float16_config=SimpleNamespace(enabled=True),
        scheduler_params={"warmup_num_steps": 10},
    )
    checkpoint_engine = None
    found = ("path", {"step": 1})
    def load_checkpoint(self, folder, tag):
        group["lr"] = 0.1
        self.loaded = torch.load(Path(folder, tag, "mp_rank_00_model_states.pt"))
        return self.found

folder = Path(sys.argv[1])
store = Store.init(folder / "store")
engine = Engine()
made = install(engine, store)
assert engine.checkpoint_engine is made
for step in (5, 6, 6):
    if len(store.checkpoints()) == 2:  # a rollback
        made.load(str(folder / "out" / "global_step5" / "mp_rank_00_model_states.pt"))
    info = CheckpointCommitInfo(f"global_step{step}", str(folder / "out"), True)
    made.create(info)
    made.makedirs(folder / "out" / info.tag, exist_ok=True)
    value = torch.full((3,), float(step + len(store.checkpoints())))
    made.save({"w": value}, folder / "out" / info.tag / "mp_rank_00_model_states.pt")
    assert made.commit(info)
engine._config = SimpleNamespace(train_batch_size=8, scheduler_params={"warmup_num_steps": 20})
group["lr"] = 0.5
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    assert load(engine, store, str(folder / "out"), "6")[0] == "path"
assert made.resumed_inexactly == (
    "the checkpoint holds no random states: numbers drawn from here on will differ",
    "the data loader has another train batch size: 8 now, 4 in the checkpoint",
    "precision is 'fp32' now, 'fp16' in the checkpoint",
    "scheduler_params is {'warmup_num_steps': 20} now, {'warmup_num_steps': 10} in the checkpoint",
    "optimizer.param_groups[0]['lr'] is 0.1 as in the checkpoint, your program gave 0.5",
), made.resumed_inexactly
assert [one for one in told if all(sentence in str(one.message) for sentence in made.resumed_inexactly)]
assert engine.loaded["w"][0] == 8, engine.loaded
engine.found = (None, None)
try:
    load(engine, store, str(folder / "out"))
except BadInput as error:
    assert "found nothing to load" in str(error), error
else:
    raise SystemExit("it was taken")
best = CheckpointCommitInfo("best", str(folder / "out"), True)
made.create(best)
made.makedirs(folder / "out" / "best", exist_ok=True)
made.save({"w": torch.ones(1)}, folder / "out" / "best" / "mp_rank_00_model_states.pt")
assert made.commit(best)
assert (store.info(7).message, store.info(6).message) == ("best", "")
print("ENDED", [info.step for info in store.checkpoints()])
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.integration
def test_a_tag_is_committed_when_it_is_written_and_loading_nothing_is_an_error(tmp_path: Path) -> None:
    require(importlib.util.find_spec("deepspeed") is not None, "needs deepspeed")

    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=280, check=False
    )

    assert "ENDED [5, 6, 7]" in done.stdout, done.stdout + done.stderr
    assert Store.open(tmp_path / "store").latest() is not None


@pytest.mark.slow
@pytest.mark.whole  # accelerate's takes the same way: files of a framework are committed, damaged, and checked out
@pytest.mark.integration
def test_the_example_with_the_real_engine_is_killed_in_a_save_and_goes_on_past_a_damaged_newest(tmp_path: Path) -> None:
    require(importlib.util.find_spec("deepspeed") is not None, "needs deepspeed")

    def launch(kill_at: int) -> subprocess.CompletedProcess[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        words = [
            "-m",
            "tests.integrations.tiny_deepspeed",
            str(kill_at),
            str(tmp_path / "store"),
            str(tmp_path / "out"),
        ]
        return subprocess.run(
            [*launcher, *words],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    killed = launch(6)
    assert "Signal 9 (SIGKILL)" in killed.stderr, killed.stdout + killed.stderr
    with Store.open(tmp_path / "store") as store:
        assert [info.step for info in store.checkpoints()] == [2, 4]
        own = [blob for blob in blobs_by_size(store, 4) if blob.stat().st_nlink == 2]
    flip(own[-1])

    resumed = launch(0)

    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert resumed.stdout.count("ENDED") == 2
    with Store.open(tmp_path / "store") as store:
        assert [info.step for info in store.checkpoints()] == [2, 4, 6]
        files = {file.path for file in files_of(store, 6)}
    assert {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)} <= {Path(path).name for path in files}
