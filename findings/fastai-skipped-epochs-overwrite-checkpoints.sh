#!/bin/sh
# fastai 2.8.12 with torch 2.13.0: a resume with `start_epoch` overwrites the checkpoints of the epochs that it skips.
#
# `fit_one_cycle(n, start_epoch=k)` begins each of the first k epochs and cancels it at once. `SaveModelCallback(every_epoch=True)` also
# runs after a cancelled epoch. So the resume first saves the loaded model as `model_0`, `model_1` and so on. No earlier checkpoint
# remains, and a return to an earlier epoch loads the later weights. There is no warning. Give the callback another `fname` at the resume.
#
# Guess: skipped epochs write nothing, and the first file that the resume writes is that of epoch k.
# Seen, 2026-11-30: a run that was stopped after epoch 3 and resumed from `model_3` with `start_epoch=4`: `model_0` to `model_2` contain the
# weights of `model_3`. With fname="resumed" they are intact, but `resumed_0` to `resumed_3` also exist.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'fastai==2.8.12'
cat > "$dir/try.py" <<'PY'
import sys
from pathlib import Path

import fastai
import torch
from fastai.callback.schedule import Learner  # with the methods that fit by a schedule
from fastai.callback.tracker import SaveModelCallback
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from torch.utils.data import TensorDataset

torch.set_num_threads(1)


def learner(path):
    torch.manual_seed(0)
    rows = torch.randn(32, 4)
    samples = TensorDataset(rows, rows.sum(1, keepdim=True))
    loaders = DataLoaders(DataLoader(samples, bs=8), DataLoader(samples, bs=8))
    return Learner(loaders, torch.nn.Linear(4, 1), loss_func=torch.nn.functional.mse_loss, path=path, lr=0.1)


def weights(path):
    """The first weight in each checkpoint."""
    files = sorted((path / "models").glob("*.pth"))
    return {file.stem: round(torch.load(file, weights_only=False)["model"]["weight"][0, 0].item(), 4) for file in files}


def stopped_and_resumed(path, fname):
    first = learner(path)
    with first.no_bar(), first.no_logging():
        first.fit_one_cycle(6, cbs=SaveModelCallback(every_epoch=True, with_opt=True))
    for epoch in (4, 5):
        (path / "models" / f"model_{epoch}.pth").unlink()  # as if the run had been stopped after epoch 3
    before = weights(path)
    second = learner(path)
    second.load("model_3", with_opt=True)
    with second.no_bar():
        second.fit_one_cycle(6, start_epoch=4, cbs=SaveModelCallback(fname=fname, every_epoch=True, with_opt=True))
    return before, weights(path)


print("fastai", fastai.__version__, "torch", torch.__version__)
before, after = stopped_and_resumed(Path(sys.argv[1]) / "same", "model")
print("before the resume:", before)
print("after the resume: ", after)
assert len(set(before.values())) == len(before) == 4
assert all(after[f"model_{epoch}"] == before["model_3"] for epoch in range(4))
assert after["model_4"] != before["model_3"]

before, after = stopped_and_resumed(Path(sys.argv[1]) / "other", "resumed")
print("another fname:    ", after)
assert all(after[name] == weight for name, weight in before.items())
assert all(after[f"resumed_{epoch}"] == before["model_3"] for epoch in range(4))
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
