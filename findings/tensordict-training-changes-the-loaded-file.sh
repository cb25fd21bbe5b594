#!/bin/sh
# tensordict 0.15.3 with torch 2.13.0: a model that was loaded by `load_memmap` and `to_module` writes its training into the checkpoint.
#
# `TensorDict.load_memmap` maps the files of a checkpoint, shared and writable, and does not lock the result. `to_module` makes these tensors the
# parameters and buffers of the model. So each step of an optimizer, and each forward pass of a batch normalization in train mode, changes the
# files. The checkpoint on disk is then the model as it is now: a return to it, or another process that reads it, gets the trained weights, without an
# error or a warning. `torch.load(mmap=True)` with `assign=True` maps privately and leaves its file as it was. Call `.clone()` before `to_module`.
#
# Guess: the mapping is private or read-only, as that of `torch.load(mmap=True)`.
# Seen, 2026-11-29: after one step the weight on disk is another one, and after a forward pass the running mean. With `.clone()` and with
# `torch.load` both are as saved.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'tensordict==0.15.3'
cat > "$dir/try.py" <<'PY'
import sys

import tensordict
import torch
from tensordict import TensorDict
from torch import nn


def build():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def memmap(folder, *, clone=False):
    """Save a model, and return a model that has loaded it, and a function that reads the saved state."""
    TensorDict.from_module(build()).memmap(folder)
    loaded = TensorDict.load_memmap(folder)
    print("locked:", loaded.is_locked, end=" ")
    model = build()
    (loaded.clone() if clone else loaded).to_module(model)

    def read():
        found = TensorDict.load_memmap(folder)
        return [found[name].clone() for name in (("0", "weight"), ("1", "running_mean"))]

    return model, read


def plain(file):
    torch.save(build().state_dict(), file)
    model = build()
    model.load_state_dict(torch.load(file, mmap=True), assign=True)

    def read():
        found = torch.load(file)
        return [found["0.weight"], found["1.running_mean"]]

    return model, read


def kept(model, read):
    """Whether the saved weight and the saved running mean are the same after a step."""
    saved = read()
    inputs = torch.arange(8.0).reshape(4, 2)
    model.train()(inputs)[:, 0].pow(3).sum().backward()
    weight = model[0].weight.clone()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert not torch.equal(weight, model[0].weight)
    return tuple(torch.equal(before, after) for before, after in zip(saved, read(), strict=True))


print("tensordict", tensordict.__version__, "torch", torch.__version__)
torch.manual_seed(0)
found = {
    "load_memmap": kept(*memmap(sys.argv[1] + "/one")),
    "load_memmap and clone": kept(*memmap(sys.argv[1] + "/two", clone=True)),
    "torch.load": kept(*plain(sys.argv[1] + "/three.pt")),
}
print()
for how, (weight, mean) in found.items():
    print(f"{how}: the file keeps its weight: {weight}, its running mean: {mean}")
assert found == {"load_memmap": (False, False), "load_memmap and clone": (True, True), "torch.load": (True, True)}
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
