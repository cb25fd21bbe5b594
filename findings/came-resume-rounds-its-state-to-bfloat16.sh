#!/bin/sh
# came-pytorch 0.1.3 and pytorch_optimizer 4.1.0 with torch 2.13.0: with bfloat16 weights, a load rounds the float32 state of CAME and ends Kron.
#
# CAME computes in float32, and keeps its momentum and its factored second moments in float32, also for bfloat16 weights. `load_state_dict` of torch
# converts each floating-point tensor in the state, except `step`, to the type of its weight. So after a resume the state has 8 bits of precision
# instead of 24, for the rest of the run and in each later checkpoint. Nothing is raised or logged. `Kron` of pytorch_optimizer keeps a part of its
# state in float32, and computes with both types. Its load succeeds, and its next step raises RuntimeError. With float32 weights CAME continues
# exactly. After the load, put the saved tensors into `optimizer.state` with their own types.
#
# Guess: an optimizer continues bit for bit from its own state, also with bfloat16 weights.
# Seen, 2026-11-30: after a load five tensors of CAME are bfloat16, and 30 steps later the weights differ. With the saved types they are equal.
# Kron: "expected scalar type Float but found BFloat16".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'came-pytorch==0.1.3' 'pytorch_optimizer==4.1.0'
cat > "$dir/try.py" <<'PY'
import copy
from importlib.metadata import version

import torch
from came_pytorch import CAME
from pytorch_optimizer import Kron

torch.manual_seed(0)
start, targets = torch.randn(6, 8), torch.randn(50, 6, 8)


def build(kind, dtype):
    weight = torch.nn.Parameter(start.to(dtype))
    return weight, kind([weight], lr=0.01)


def train(weight, optimizer, steps):
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        (weight - targets[step].to(weight.dtype)).square().sum().backward()
        optimizer.step()


def dtypes(optimizer):
    return {name: value.dtype for name, value in optimizer.state_dict()["state"][0].items() if torch.is_tensor(value)}


def resumed(kind, dtype, *, keep_types=False):
    weight, optimizer = build(kind, dtype)
    train(weight, optimizer, range(20))
    state, before = copy.deepcopy(optimizer.state_dict()), dtypes(optimizer)
    again, optimizer = build(kind, dtype)
    again.data.copy_(weight.data)
    optimizer.load_state_dict(state)
    if keep_types:
        optimizer.state[again] = state["state"][0]
    changed = {name: found for name, found in dtypes(optimizer).items() if found != before[name]}
    train(again, optimizer, range(20, 50))
    return again.data, changed


def whole(kind, dtype):
    weight, optimizer = build(kind, dtype)
    train(weight, optimizer, range(50))
    return weight.data


print({name: version(name) for name in ("came-pytorch", "pytorch_optimizer", "torch")})
half, full = torch.bfloat16, torch.float32
expected = whole(CAME, half)
found, changed = resumed(CAME, half)
print("CAME, changed types:", changed)
print("CAME, largest difference:", (found - expected).abs().max().item())
assert changed and set(changed.values()) == {half} and not torch.equal(found, expected)
assert torch.equal(resumed(CAME, half, keep_types=True)[0], expected)
assert torch.equal(resumed(CAME, full)[0], whole(CAME, full))
whole(Kron, half)
try:
    resumed(Kron, half)
except RuntimeError as error:
    print("Kron:", error)
else:
    raise SystemExit("Kron continues with bfloat16 weights")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
