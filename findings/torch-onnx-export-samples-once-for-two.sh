#!/bin/sh
# torch 2.13.0 with onnxscript 0.7.2 and onnx 1.23.2: in an exported model, two samples of `torch.bernoulli` or two dropout masks are the same sample.
#
# `torch.onnx.export` optimizes the model by default with onnxscript. It merges nodes with equal inputs and attributes, since they compute the same. It
# excludes RandomNormal, RandomUniform and their Like forms, but not Bernoulli and Dropout in training mode. So the two samples of a Monte Carlo
# dropout, the two views of a contrastive loss, or two hidden samples of one probability are equal in the exported model. Their variance is 0, and their
# difference too. Samples still change between calls, so a check of one output does not show it. Nothing is raised, and the log has no warning.
# `onnxscript.optimizer.optimize` does the same with models of other exporters. Export with `optimize=False`, or sample with `torch.rand_like(x) < p`.
#
# Guess: random nodes are kept apart, as for the normal distribution.
# Seen, 2026-12-01: of two masks of 64 numbers, and of two Bernoulli samples, both are equal in each call. In PyTorch and with `optimize=False` they
# differ, and two samples of `torch.rand_like` and `torch.randn_like` differ in all.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'onnx==1.23.2' 'onnxscript==0.7.2' 'onnxruntime==1.32.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime
import onnxscript
import onnxscript.optimizer
import torch

print(*(f"{module.__name__} {module.__version__}" for module in (torch, onnx, onnxscript, onnxruntime, np)))
torch.manual_seed(0)
PATH = sys.argv[1] + "/model.onnx"


class Model(torch.nn.Module):
    def __init__(self, sample):
        super().__init__()
        self.sample = sample

    def forward(self, x):
        return self.sample(x), self.sample(x)


def dropout(x):
    return torch.nn.functional.dropout(x, 0.5, training=True)


def compared(model):
    """Whether the two samples of each of 3 calls differ, and whether the calls differ."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    calls = [session.run(None, {session.get_inputs()[0].name: x.numpy()}) for _ in range(3)]
    within = {not np.array_equal(*call) for call in calls}
    assert len(within) == 1
    return within.pop(), not np.array_equal(calls[0][0], calls[1][0])


x = torch.full((64,), 0.5)
for name, sample in (("dropout", dropout), ("bernoulli", torch.bernoulli), ("rand_like", torch.rand_like), ("randn_like", torch.randn_like)):
    model = Model(sample).eval()
    assert not torch.equal(*model(x))
    results = {}
    for optimize in (False, True):
        torch.onnx.export(model, (x,), PATH, dynamo=True, verbose=False, **({} if optimize else {"optimize": False}))
        exported = onnx.load(PATH)
        results[optimize] = compared(exported)
        print(f"{name}, optimize={optimize}: nodes {[node.op_type for node in exported.graph.node]}, "
              f"the two samples {'differ' if results[optimize][0] else 'are equal'}")
        if not optimize:
            assert compared(onnxscript.optimizer.optimize(exported))[0] == (name not in ("dropout", "bernoulli"))
    assert results[False] == (True, True) and results[True] == (name not in ("dropout", "bernoulli"), True)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
