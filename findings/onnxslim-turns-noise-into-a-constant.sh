#!/bin/sh
# onnxslim 0.1.98 with onnx 1.23.2: a slimmed model adds the same "random" numbers in each call, and two samples of noise become one.
#
# onnxslim simplifies ONNX files before deployment. It evaluates each node whose inputs are constants, and `RandomNormal` and `RandomUniform` have no
# inputs. So `torch.randn(4)` in a model becomes a weight with numbers of one sample. In addition, it merges equal nodes, so two samples of `RandomNormalLike` or
# `RandomUniformLike` of the same tensor are one. A sampler, a variational autoencoder or a policy with noise is deterministic or its samples are equal.
# Nothing is raised or logged. `model_check=True` compares the outputs of both models. It prints a mismatch for the merged samples, and nothing for the
# constants. Pass the noise as an input of the model.
#
# Guess: random nodes are kept.
# Seen, 2026-12-01: after slimming, a model of two `RandomNormal` has only two `Add` nodes and constants, and all calls and new sessions return the
# same numbers. A model of two `RandomNormalLike` has one, and its two outputs are equal. The same holds for the uniform distribution. Bernoulli and
# Dropout are kept. Before slimming, all samples differ.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'onnxslim==0.1.98' 'onnx==1.23.2' 'onnxruntime==1.32.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import contextlib
import io
import warnings

import numpy as np
import onnx
import onnxruntime
import onnxslim
from onnx import TensorProto, helper

warnings.simplefilter("error")
print(*(f"{module.__name__} {module.__version__}" for module in (onnxslim, onnx, onnxruntime, np)))
SHAPE = [64]
X = np.full(SHAPE, 0.5, np.float32)


def model(kind):
    """Two samples of noise, each added to the input."""
    inputs, attributes = (["x"], {}) if kind.endswith("Like") else ([], {"shape": SHAPE})
    nodes = [helper.make_node(kind, inputs, [name], **attributes) for name in ("a", "b")]
    nodes += [helper.make_node("Add", ["x", name], [output]) for name, output in (("a", "first"), ("b", "second"))]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", "first", "second")}
    graph = helper.make_graph(nodes, "noise", [values["x"]], [values["first"], values["second"]])
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(result)
    return result


def compared(found):
    """Whether the two samples differ, and whether two calls and two sessions differ."""
    sessions = [onnxruntime.InferenceSession(found.SerializeToString()) for _ in range(2)]
    one, two, other = (session.run(None, {"x": X}) for session in (sessions[0], *sessions))
    return not np.array_equal(*one), not np.array_equal(one[0], two[0]) or not np.array_equal(one[0], other[0])


for kind in ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"):
    slimmed = onnxslim.slim(model(kind))
    before, after = compared(model(kind)), compared(slimmed)
    nodes = [node.op_type for node in slimmed.graph.node]
    report = io.StringIO()
    with contextlib.redirect_stdout(report), contextlib.redirect_stderr(report):
        onnxslim.slim(model(kind), model_check=True)
    print(f"{kind}: (samples differ, calls differ) {before}, slimmed {after}, nodes {nodes}, check {'reports a mismatch' if 'mismatch' in report.getvalue() else 'reports nothing'}")
    assert before == (True, True)
    if kind.endswith("Like"):
        assert after == (False, True) and nodes.count(kind) == 1 and "mismatch" in report.getvalue()
    else:
        assert after == (True, False) and nodes == ["Add", "Add"] and not report.getvalue()
PY
"$dir/venv/bin/python" "$dir/try.py"
