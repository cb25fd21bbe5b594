#!/bin/sh
# pyro-ppl 1.9.2 with torch 2.13.0: an optimizer that has made a step ignores `set_state` and `load`.
#
# An optimizer of Pyro makes one torch optimizer for each parameter when it first sees the parameter. `set_state` only stores the state for
# optimizers that are made later. So a training that returns to a checkpoint in the same process, for example after a NaN, restores its
# parameters and continues with the moments and the step count of the steps it wanted to undo, without a warning. `get_state` afterwards
# also returns the old state. In a new optimizer object the same state is restored exactly.
#
# Guess: `set_state` replaces the state, as `load_state_dict` does in torch.
# Seen, 2026-11-29: a state of step 3 is set after step 5. The next step is 6, and weights differ. With a new object it is 4, and they agree.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'pyro-ppl==1.9.2'
cat > "$dir/try.py" <<'PY'
import copy
import sys

import pyro
import torch

pyro.param("scale", torch.ones(3))
leaf = pyro.get_param_store()._params["scale"]


def step(optimizer, gradient):
    leaf.grad = torch.full((3,), float(gradient))
    optimizer([leaf])


def count(optimizer):
    return int(optimizer.get_state()["scale"]["state"][0]["step"])


def restore(value):
    with torch.no_grad():
        leaf.copy_(value)


first = pyro.optim.Adam({"lr": 0.1})
for gradient in (1, 2, 3):
    step(first, gradient)
checkpoint, state = leaf.detach().clone(), copy.deepcopy(first.get_state())
first.save(sys.argv[1] + "/state")
step(first, 9)
right = leaf.detach().clone()
step(first, -4)

print("pyro", pyro.__version__)
for how in ("set_state", "load"):
    restore(checkpoint)
    before = count(first)
    first.set_state(copy.deepcopy(state)) if how == "set_state" else first.load(sys.argv[1] + "/state")
    step(first, 9)
    print(f"{how} at step {before}: next step is {count(first)}, same weights: {torch.equal(leaf, right)}")
    assert count(first) == before + 1
    assert not torch.equal(leaf, right)

second = pyro.optim.Adam({"lr": 0.1})
restore(checkpoint)
second.set_state(copy.deepcopy(state))
step(second, 9)
print(f"a new object: next step is {count(second)}, same weights: {torch.equal(leaf, right)}")
assert count(second) == 4
assert torch.equal(leaf, right)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
