#!/bin/sh
# pytorch-tabnet 4.1.0 with torch 2.13.0: a loaded model keeps the learning rate of its optimizer, but trains on with Adam and without the schedule.
#
# `save_model` writes the arguments of the constructor as JSON, and leaves out those that are classes: `optimizer_fn` and `scheduler_fn`.
# `optimizer_params` and `scheduler_params` are written. `load_model` puts the defaults in place of the missing ones: Adam, and no scheduler.
# `fit(warm_start=True)` then trains the loaded weights with Adam at the rate that was chosen for SGD. There is no error or warning, and predictions
# after the load are equal. Set both attributes after the load.
#
# Guess: a loaded model has the optimizer and the schedule that it was created with, since their parameters are in the file.
# Seen, 2026-11-30: SGD with rate 0.2 and StepLR. After a load the optimizer is Adam with rate 0.2, and the rate after 6 epochs is 0.2 instead of
# 0.025. With both attributes set it is SGD and 0.025.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'pytorch-tabnet==4.1.0' 'scikit-learn==1.9.1' 'scipy==1.17.1' 'pandas==2.3.3'
cat > "$dir/try.py" <<'PY'
import sys
from importlib.metadata import version

import numpy as np
import torch
from pytorch_tabnet.tab_model import TabNetRegressor

random = np.random.default_rng(0)
inputs = random.normal(size=(512, 6)).astype(np.float32)
targets = inputs[:, :1] * 2 + inputs[:, 1:2]
EPOCHS = 6
EVALUATION = [(inputs, targets)]  # without one, no schedule of epochs makes a step


def continued(model):
    """Train on, and return the kind of optimizer, and its learning rate at the end."""
    model.fit(inputs, targets, eval_set=EVALUATION, max_epochs=EPOCHS, batch_size=256, virtual_batch_size=64, warm_start=True)
    optimizer = model._optimizer
    return type(optimizer).__name__, optimizer.param_groups[0]["lr"]


def loaded():
    model = TabNetRegressor(verbose=0)
    model.load_model(f"{sys.argv[1]}/model.zip")
    return model


print("pytorch-tabnet", version("pytorch-tabnet"), "torch", torch.__version__)
model = TabNetRegressor(
    verbose=0, seed=1, optimizer_fn=torch.optim.SGD, optimizer_params={"lr": 0.2},
    scheduler_fn=torch.optim.lr_scheduler.StepLR, scheduler_params={"step_size": 2, "gamma": 0.5},
)
first = continued(model)
model.save_model(f"{sys.argv[1]}/model")
again = loaded()
print("parameters after a load:", again.optimizer_params, again.scheduler_params, "classes:", again.optimizer_fn.__name__, again.scheduler_fn)
assert np.array_equal(model.predict(inputs), again.predict(inputs))
assert (again.optimizer_params, again.scheduler_params) == (model.optimizer_params, model.scheduler_params)
repaired = loaded()
repaired.optimizer_fn, repaired.scheduler_fn = torch.optim.SGD, torch.optim.lr_scheduler.StepLR
found = continued(model), continued(again), continued(repaired)
print("optimizer and rate at the end: not loaded", found[0], "loaded", found[1], "loaded, with both attributes set", found[2])
assert first == found[0] == found[2] == ("SGD", 0.025) and found[1] == ("Adam", 0.2)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
