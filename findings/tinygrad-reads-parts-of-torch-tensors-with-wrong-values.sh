#!/bin/sh
# tinygrad 0.14.0 with torch 2.13.0: `torch_load` returns wrong values for a tensor that was saved as some columns of a larger tensor.
#
# `torch.save` stores a slice as the memory of the larger tensor with an offset, a shape and strides. `tinygrad.nn.state.torch_load` uses the strides
# to detect a transposition, but not to detect gaps. It reads as many consecutive numbers as the shape needs. For columns these include the numbers in
# the gaps. The shape is right and nothing is raised, so the model runs with mixed weights. This affects a layer that was made narrower by
# `weight.data = weight.data[:, :n]`, and a part of a fused weight. Slices of rows, transposed and permuted tensors are right. `expand` and a slice of
# a transposed tensor raise AssertionError, so the function seems to check the strides. Save such tensors with `contiguous()` or `clone()`.
#
# Guess: the tensor is equal to the one that `torch.load` returns, or it is refused.
# Seen, 2026-12-01: of [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], the first two columns are read as [[0, 1], [2, 3], [4, 5]]. A Linear layer with 8
# of 16 inputs has a correct first row, 3 wrong rows and other outputs. The legacy file format has the same result. A clone is right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0'
"$dir/venv/bin/pip" -q install 'tinygrad==0.14.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import itertools
import sys
from importlib.metadata import version

import numpy as np
import torch
from tinygrad import Tensor
from tinygrad.nn.state import torch_load

torch.set_num_threads(1)
print("tinygrad", version("tinygrad"), "torch", torch.__version__)
files = itertools.count()


def read(state, zipped=True):
    """What tinygrad reads from a file of torch, after a check that torch reads it correctly."""
    path = f"{sys.argv[1]}/{next(files)}.pth"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    again = torch.load(path)
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    return {name: tensor.numpy() for name, tensor in torch_load(path).items()}


x = torch.arange(12.0).reshape(3, 4)
cube = torch.arange(24.0).reshape(2, 3, 4)
parts = {"columns": x[:, :2], "other columns": x[:, 1:3], "every second column": x[:, ::2], "inner": cube[:, 1:, 1:], "middle": cube[:, 1]}
whole = {"rows": x[1:], "transposed": x.T, "permuted": cube.permute(2, 0, 1), "clone": x[:, :2].clone(), "contiguous": x[:, 1:3].contiguous()}
for zipped in (True, False):
    for name, tensor in (parts | whole).items():
        found = read({"x": tensor}, zipped)["x"]
        right = np.array_equal(found, tensor.numpy())
        print(f"{name}: saved {tensor.tolist()}", "read correctly" if right else f"read {found.tolist()}")
        assert found.shape == tuple(tensor.shape) and right == (name in whole)
assert read({"x": x[:, :2]})["x"].tolist() == [[0, 1], [2, 3], [4, 5]]

torch.manual_seed(0)
layer = torch.nn.Linear(16, 4)
layer.weight.data = layer.weight.data[:, :8]
inputs = torch.randn(5, 8)
state = read(layer.state_dict())
assert np.array_equal(state["bias"], layer.bias.detach().numpy())
rows = (state["weight"] == layer.weight.detach().numpy()).all(axis=1)
outputs = (Tensor(inputs.numpy()) @ Tensor(state["weight"]).T + Tensor(state["bias"])).numpy()
print(f"Linear with 8 of 16 inputs: correct rows {rows.tolist()}, largest difference of outputs {abs(outputs - layer(inputs).detach().numpy()).max():.2f}")
assert rows.tolist() == [True, False, False, False] and abs(outputs - layer(inputs).detach().numpy()).max() > 0.1
PY
DEV=PYTHON "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
