#!/bin/sh
# deepchem 2.8.0 with torch 2.13.0: `TorchModel.restore` restores the optimizer and the step count, and the learning rate schedule begins again.
#
# A checkpoint of `TorchModel` contains the weights, the state of the optimizer and the number of steps. A learning rate such as `PolynomialDecay` becomes a
# scheduler of torch, whose position is in no checkpoint. After a restore in a new process, the scheduler counts from its first step. `PolynomialDecay`
# and `LinearCosineDecay` compute the rate from this count, so the first step after a restore has the full rate again. Nothing is raised or logged, and
# `get_global_step()` has the right number. `ExponentialDecay` multiplies the restored rate, so only the moment of its next change is wrong.
# Set the count of the scheduler after the restore, as below.
#
# Guess: the schedule follows the restored number of steps.
# Seen, 2026-11-30: a decay from 1.0 to 0.0 in 10 steps, saved after 5 of them. The next rate is 0.4 without a stop and 0.9 after the restore.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'deepchem==2.8.0'
cat > "$dir/try.py" <<'PY'
import sys

import deepchem
import torch
from deepchem.models.losses import L2Loss
from deepchem.models.optimizers import ExponentialDecay, GradientDescent, LinearCosineDecay, PolynomialDecay
from deepchem.models.torch_models import TorchModel

inputs = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).numpy()
data = deepchem.data.NumpyDataset(inputs, inputs.sum(1, keepdims=True))  # one batch, so that an epoch is a step


def model(folder, schedule):
    torch.manual_seed(0)
    return TorchModel(torch.nn.Linear(3, 1), L2Loss(), optimizer=GradientDescent(schedule), model_dir=folder, batch_size=4)


def rates(trained, steps):
    """The learning rate after each step."""
    found = []
    for _ in range(steps):
        trained.fit(data, nb_epoch=1, checkpoint_interval=0, deterministic=True)
        found.append(round(trained._pytorch_optimizer.param_groups[0]["lr"], 4))
    return found


print("deepchem", deepchem.__version__, "torch", torch.__version__)
schedules = {
    "PolynomialDecay": lambda: PolynomialDecay(1.0, 0.0, 10),
    "LinearCosineDecay": lambda: LinearCosineDecay(1.0, 10),
    "ExponentialDecay": lambda: ExponentialDecay(1.0, 0.5, 2),
}
for name, schedule in schedules.items():
    folder = f"{sys.argv[1]}/{name}"
    whole = model(folder, schedule())
    first = rates(whole, 5)
    whole.save_checkpoint()
    expected = rates(whole, 5)
    restored = model(folder, schedule())
    restored.restore()
    steps = restored.get_global_step()
    found = rates(restored, 5)
    repaired = model(folder, schedule())
    repaired.restore()
    repaired._lr_schedule.last_epoch = repaired.get_global_step()
    fixed = rates(repaired, 5)
    print(f"{name}: first 5 steps {first}, next without a stop {expected}, restored at step {steps} {found}, with the count {fixed}")
    assert steps == 5 and found != expected and fixed == expected
    assert (found == first) == (name != "ExponentialDecay")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" 2> "$dir/log" || { cat "$dir/log"; exit 1; }
