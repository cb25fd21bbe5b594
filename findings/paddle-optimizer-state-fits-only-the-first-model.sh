#!/bin/sh
# paddlepaddle 3.3.1: the state of an optimizer fits only if its model is the first of its kind that the process creates.
#
# `model.state_dict()` names weights by their place in the model. `optimizer.state_dict()` names moments by a counter of the process, such as
# `linear_0.w_0_moment1_0`. If another layer of the same class was created earlier, for example a teacher or the model of a first attempt, the counter
# differs. `set_state_dict` accepts the state and returns. The first step then raises AssertionError, often after the first batches were read. An
# optimizer that has taken a step raises it in `set_state_dict`. The model loads in both cases. Create the models of a program in the same order in each
# process, and load a checkpoint in a new process. Or create, load and train the model in `with paddle.utils.unique_name.guard():`.
#
# Guess: the state is matched by position, or by the names in the model.
# Seen, 2026-11-30: in a process with another Linear layer, `set_state_dict` succeeds and `step` raises "linear_1.w_0_moment1_0 should in state dict".
# In `unique_name.guard()` the run continues exactly.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'paddlepaddle==3.3.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import contextlib
import sys

import numpy as np
import paddle

paddle.device.set_device("cpu")
inputs = paddle.to_tensor(np.random.RandomState(0).randn(32, 4).astype("float32"))
targets = inputs.sum(axis=1, keepdim=True)


def build():
    model = paddle.nn.Linear(4, 1)
    return model, paddle.optimizer.AdamW(0.05, parameters=model.parameters())


def train(model, optimizer, steps):
    for _ in range(steps):
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return model.weight.numpy()


def load(model, optimizer):
    assert model.set_state_dict(paddle.load(sys.argv[1] + "/model")) == ([], [])
    optimizer.set_state_dict(paddle.load(sys.argv[1] + "/optimizer"))


print("paddlepaddle", paddle.__version__)
model, optimizer = build()
train(model, optimizer, 20)
print("names:", list(model.state_dict()), list(optimizer.state_dict())[:2])
paddle.save(model.state_dict(), sys.argv[1] + "/model")
paddle.save(optimizer.state_dict(), sys.argv[1] + "/optimizer")
expected = train(model, optimizer, 10)

again, optimizer = build()
load(again, optimizer)
print("set_state_dict of a second model: no error")
try:
    train(again, optimizer, 1)
except AssertionError as error:
    print("its first step:", error)
    assert "linear_1" in str(error)
else:
    raise SystemExit("the second model takes a step")

again, optimizer = build()
train(again, optimizer, 1)
try:
    load(again, optimizer)
except AssertionError as error:
    print("set_state_dict after a step:", error)
else:
    raise SystemExit("the state is loaded after a step")

with paddle.utils.unique_name.guard():
    again, optimizer = build()
    load(again, optimizer)
    assert np.array_equal(train(again, optimizer, 10), expected)
print("with unique_name.guard(): equal")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
