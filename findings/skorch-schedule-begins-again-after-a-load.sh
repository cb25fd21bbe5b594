#!/bin/sh
# skorch 1.4.0 with torch 2.13.0: with `LoadInitState` after an `LRScheduler` in the list of callbacks, the schedule begins again.
#
# An `LRScheduler` has no state in a checkpoint. At the start of a training it makes a new scheduler and repeats one step for each epoch in the
# history. `LoadInitState` restores that history at the same moment. So only if it comes first in the list does the learning rate continue. In the
# other order the model, the optimizer and the history are restored, and the rate is that of the first epoch, without a warning.
#
# Seen: a rate of 1.0 that is divided by 10 every two epochs, saved after epoch 3. The fourth epoch has 0.1 without a stop, and 1.0 after
# a load in the wrong order.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'skorch==1.4.0'
cat > "$dir/try.py" <<'PY'
import os
import tempfile

import numpy
import skorch
import torch
from skorch import NeuralNetRegressor
from skorch.callbacks import Checkpoint, LoadInitState, LRScheduler

inputs = numpy.random.default_rng(0).random((64, 3), dtype="float32")
targets = inputs.sum(1, keepdims=True)


def rates(folder, epochs, order):
    """Trains for some epochs, with callbacks in this order. Returns the learning rate of each."""
    checkpoint = Checkpoint(dirname=folder, monitor=None)
    schedule = LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2, gamma=0.1)
    callbacks = {"schedule": schedule, "load": LoadInitState(checkpoint), "checkpoint": checkpoint}
    net = NeuralNetRegressor(
        torch.nn.Linear, module__in_features=3, module__out_features=1, max_epochs=epochs, lr=1.0, optimizer=torch.optim.SGD,
        train_split=None, verbose=0, callbacks=[(name, callbacks[name]) for name in order],
    )  # fmt: skip
    net.fit(inputs, targets)
    return [round(epoch["event_lr"], 6) for epoch in net.history]


print("skorch", skorch.__version__)
whole = rates(tempfile.mkdtemp(dir=os.environ["DIR"]), 6, ["schedule", "checkpoint"])
print("without a stop", whole)
assert whole == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
for order, right in ((["load", "schedule", "checkpoint"], True), (["schedule", "load", "checkpoint"], False)):
    folder = tempfile.mkdtemp(dir=os.environ["DIR"])
    rates(folder, 3, ["schedule", "checkpoint"])
    resumed = rates(folder, 3, order)
    print(order, "resumed after epoch 3", resumed)
    assert resumed == (whole if right else [1.0, 1.0, 0.1, 1.0, 0.1, 0.01])
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
