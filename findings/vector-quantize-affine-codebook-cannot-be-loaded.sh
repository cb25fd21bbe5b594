#!/bin/sh
# vector-quantize-pytorch 1.32.0 with torch 2.13.0: a new `VectorQuantize(affine_param=True)` cannot load a checkpoint.
#
# With `affine_param=True` the statistics of batches are buffers that are registered in the first step of training. A new module does not have them. So
# `load_state_dict` raises RuntimeError for unexpected keys. With `strict=False` it loads the rest, the averages begin again, and the module continues
# with other codes and reports nothing. A module that has already been trained for a step loads them. So a test that loads into the same
# object passes. The other kinds of quantizers in this package, also with `kmeans_init=True`, continue exactly. Train a new module for one step before
# the load.
#
# Guess: a module can load its own state dict.
# Seen, 2026-11-30: unexpected keys batch_mean and batch_variance. With strict=False the loss of the next step is different. After a step before the load, the
# losses of all steps are equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'vector-quantize-pytorch==1.32.0'
cat > "$dir/try.py" <<'PY'
import copy
from importlib.metadata import version

import torch
from vector_quantize_pytorch import VectorQuantize


def build(**options):
    torch.manual_seed(1)
    return VectorQuantize(dim=8, codebook_size=16, **options)


def train(module, steps):
    """Update the codebook, and return the error of each step."""
    errors = []
    for step in steps:
        torch.manual_seed(step)
        rows = torch.randn(2, 32, 8) * 2 + 1
        errors.append((module(rows)[0] - rows).square().mean().item())
    return errors


print("vector-quantize-pytorch", version("vector-quantize-pytorch"), "torch", torch.__version__)
for options in ({}, {"kmeans_init": True}, {"affine_param": True}):
    module = build(**options)
    train(module, range(20))
    state = copy.deepcopy(module.state_dict())
    expected = train(module, range(20, 30))
    again = build(**options)
    if "affine_param" in options:
        try:
            again.load_state_dict(state)
        except RuntimeError as error:
            print(str(error).splitlines()[1].strip())
            assert "batch_mean" in str(error) and "Unexpected" in str(error)
        else:
            raise SystemExit("the state is loaded")
        again = build(**options)
        again.load_state_dict(state, strict=False)
        found = train(again, range(20, 30))
        print("strict=False, errors:", found[:3], "without a stop:", expected[:3])
        assert found != expected
        again = build(**options)
        train(again, range(1))
    again.load_state_dict(state)
    assert train(again, range(20, 30)) == expected
    print(options, "equal")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
