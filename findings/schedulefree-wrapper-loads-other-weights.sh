#!/bin/sh
# schedulefree 1.4.1 with torch 2.13.0: `ScheduleFreeWrapper` saves no mode, so a checkpoint of training mode continues with other weights.
#
# In training mode the weights of the model are a mixture of the average and the base point, and `eval()` computes the average from them.
# `AdamWScheduleFree` keeps the mode in its parameter groups, which `state_dict()` contains. The wrapper keeps it in the attribute `train_mode`, which
# no state contains. A new wrapper is in eval mode. So after a load of a checkpoint from training mode, `train()` mixes the weights a second time.
# Nothing is raised or logged. With the wrapper, call `eval()` before each save, as the README says, or set `train_mode` before the first call of
# `train()`. With `AdamWScheduleFree` save in training mode: `eval()` and `train()` round the weights, and a run that saves differs from one that does not.
#
# Guess: both save their mode, and `train()` exactly undoes `eval()`.
# Seen, 2026-11-30: the wrapper resumes exactly from a save in eval mode, and not from one in training mode. AdamWScheduleFree resumes exactly
# from a save in training mode. After `eval()` and `train()`, 6 % of its float32 weights differ.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'schedulefree==1.4.1'
cat > "$dir/try.py" <<'PY'
import copy
from importlib.metadata import version

import schedulefree
import torch

torch.manual_seed(0)
inputs, targets = torch.randn(64, 8), torch.randn(64, 4)


def wrapped(weights):
    return schedulefree.ScheduleFreeWrapper(torch.optim.SGD(weights, lr=0.1))


def adamw(weights):
    return schedulefree.AdamWScheduleFree(weights, lr=0.01)


def build(kind):
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 4)
    optimizer = kind(list(model.parameters()))
    return model, optimizer


def train(model, optimizer, steps):
    optimizer.train()
    for _ in range(steps):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()


def resumed(kind, *, save_in_eval_mode, new_objects=True):
    model, optimizer = build(kind)
    train(model, optimizer, 23)
    if save_in_eval_mode:
        optimizer.eval()
    if new_objects:
        states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        model, optimizer = build(kind)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
    train(model, optimizer, 17)
    return model.weight.detach()


print("schedulefree", version("schedulefree"), "torch", torch.__version__)
for kind in (wrapped, adamw):
    model, optimizer = build(kind)
    train(model, optimizer, 40)
    differences = {mode: (resumed(kind, save_in_eval_mode=mode) - model.weight).abs().max().item() for mode in (False, True)}
    print(kind.__name__, "saved in training mode:", differences[False], "in eval mode:", differences[True])
    if kind is wrapped:
        assert differences[False] > 1e-3 and differences[True] < 1e-6
    else:
        assert differences[False] == 0
model, optimizer = build(adamw)
train(model, optimizer, 50)
before = model.weight.detach().clone()
optimizer.eval()
optimizer.train()
changed = (model.weight != before).float().mean().item()
print("weights of AdamWScheduleFree that differ after eval() and train():", changed)
assert changed > 0
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
