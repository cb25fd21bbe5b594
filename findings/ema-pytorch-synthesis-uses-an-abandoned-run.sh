#!/bin/sh
# ema-pytorch 0.8.3 with torch 2.13.0: `PostHocEMA.synthesize_ema_model` uses snapshots of an abandoned part of the run, or of another run.
#
# `PostHocEMA` writes a snapshot of its averages to a folder every 1000 steps (by default). `synthesize_ema_model` combines all files in the
# folder. Its default `step` is the highest in a file name. So after a return to an earlier checkpoint, it returns by default the average of
# the steps that the rollback undid, until the run has passed them. One later snapshot with NaN makes the average of every step NaN.
# A new run in the same folder, `./post-hoc-ema-checkpoints` by default, gets the average of the old run if that was longer. There is no
# warning. Delete the later snapshots at a rollback, and use one folder for each run.
#
# Guess: it uses the snapshots of this object up to its step, or the snapshots up to `step`.
# Seen, 2026-11-30: 40 steps with the weight 1, then 20 with 100, then back to step 40: the default gives 83.4 at step 40, and 98.6 after 10
# more steps with 1. A second run with the weight -1 in this folder gives 99. In a folder of its own it gives -1.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'ema-pytorch==0.8.3'
cat > "$dir/try.py" <<'PY'
import copy
import importlib.metadata
import math
import sys
from pathlib import Path

import torch
from ema_pytorch import PostHocEMA

torch.set_num_threads(1)
root = Path(sys.argv[1])


class Run:
    def __init__(self, folder):
        self.model = torch.nn.Linear(1, 1, bias=False)
        every = {"checkpoint_every_num_steps": 10, "update_every": 1}
        self.average = PostHocEMA(self.model, sigma_rels=(0.05, 0.28), checkpoint_folder=root / folder, **every)

    def train(self, weight, steps):
        for _ in range(steps):
            self.model.weight.data.fill_(weight)
            self.average.update()

    def synthesized(self, **step):
        return self.average.synthesize_ema_model(sigma_rel=0.15, **step).ema_model.weight.item()


print("ema-pytorch", importlib.metadata.version("ema-pytorch"), "torch", torch.__version__)
run = Run("one")
run.train(1.0, 40)
checkpoint = copy.deepcopy(run.average.state_dict())
assert abs(run.synthesized() - 1) < 0.1
run.train(100.0, 20)
run = Run("one")
run.average.load_state_dict(checkpoint)
at_rollback = run.synthesized()
run.train(1.0, 10)
later = run.synthesized()
print(f"after the rollback to step 40: {at_rollback:.1f}, 10 steps later: {later:.1f}, with step=50: {run.synthesized(step=50):.1f}")
assert run.average.step == 50
assert at_rollback > 50
assert later > 50
assert abs(run.synthesized(step=50) - 1) < 0.1

second, alone = Run("one"), Run("alone")
for other in (second, alone):
    other.train(-1.0, 30)
print(f"a second run in the same folder: {second.synthesized():.1f}, in a folder of its own: {alone.synthesized():.1f}")
assert second.synthesized() > 50
assert abs(alone.synthesized() + 1) < 0.1

diverged = Run("nan")
diverged.train(1.0, 20)
before = diverged.synthesized(step=20)
diverged.train(math.nan, 10)
print(f"step=20 before a snapshot with NaN at step 30: {before:.1f}, after it: {diverged.synthesized(step=20)}")
assert abs(before - 1) < 0.1
assert math.isnan(diverged.synthesized(step=20))
for file in (root / "nan").glob("*.30.pt"):
    file.unlink()
assert abs(diverged.synthesized(step=20) - 1) < 0.1
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
