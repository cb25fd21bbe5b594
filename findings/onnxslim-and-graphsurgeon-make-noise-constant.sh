#!/bin/sh
# onnxslim 0.1.98 and onnx-graphsurgeon 0.6.1: after the optimization of a model that draws random numbers, each run has the same numbers.
#
# Both tools compute the nodes without inputs from outside once, and replace them by their results. They also do this with `RandomNormal`,
# `RandomUniform`, `Bernoulli`, `Multinomial`, and `Dropout` in training mode. So a decoder of a VAE with `torch.randn(1, 64)` inside, or a sampler with
# a noise term, generates the same sample in every run and in every process. The optimized model is valid, and nothing is raised or logged. The check
# of a converted model on one input does not show it. onnxruntime keeps such nodes when it saves an optimized model. Make the noise an input of the
# model, or derive its shape from an input: `RandomNormalLike` of an input is kept.
#
# Guess: nodes that draw random numbers are not folded, as in onnxruntime.
# Seen, 2026-12-01: the nodes RandomNormal, RandomUniform, RandomNormalLike of a constant, Bernoulli, Multinomial and Dropout are gone after both
# tools, and all runs are equal. RandomNormalLike of an input, and every model saved by onnxruntime 1.32.0, give different numbers in each run.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'onnxslim==0.1.98' 'onnx-graphsurgeon==0.6.1' 'onnx==1.23.2' 'onnxruntime==1.32.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import onnx
import onnx_graphsurgeon
import onnxruntime
import onnxslim
from onnx import TensorProto, helper, numpy_helper

onnxruntime.set_default_logger_severity(3)
print("onnxslim", onnxslim.__version__, "onnx-graphsurgeon", onnx_graphsurgeon.__version__, "onnxruntime", onnxruntime.__version__)
shape = [2, 3]
constants = {"p": np.full(shape, 0.5, np.float32), "ratio": np.array(0.5, np.float32), "training": np.array(True)}


def node(name, inputs, output="noise", **attributes):
    return helper.make_node(name, inputs, [output], **attributes)


NOISE = {
    "RandomNormal": [node("RandomNormal", [], shape=shape)],
    "RandomUniform": [node("RandomUniform", [], shape=shape)],
    "RandomNormalLike": [node("RandomNormalLike", ["p"])],
    "Bernoulli": [node("Bernoulli", ["p"])],
    "Multinomial": [node("Multinomial", ["p"], "drawn", sample_size=3), node("Cast", ["drawn"], to=TensorProto.FLOAT)],
    "Dropout": [node("Dropout", ["p", "ratio", "training"])],
    "RandomNormalLike of the input": [node("RandomNormalLike", ["x"])],
}


def model_with(noise):
    used = {name for one in noise for name in one.input}
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    initial = [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used]
    graph = helper.make_graph([*noise, node("Add", ["x", "noise"], "y")], "noisy", values[:1], values[1:], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def is_random(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    runs = [session.run(None, {"x": np.zeros(shape, np.float32)})[0] for _ in range(20)]
    return any(not np.array_equal(runs[0], run) for run in runs)


def of_onnxruntime(model):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = f"{sys.argv[1]}/optimized.onnx"
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath)


def of_graphsurgeon(model):
    graph = onnx_graphsurgeon.import_onnx(model)
    return onnx_graphsurgeon.export_onnx(graph.fold_constants().cleanup())


TOOLS = {"onnxruntime": of_onnxruntime, "onnxslim": onnxslim.slim, "onnx-graphsurgeon": of_graphsurgeon}
for name, noise in NOISE.items():
    model = model_with(noise)
    assert is_random(model)
    for tool, optimized in TOOLS.items():
        found = optimized(onnx.ModelProto.FromString(model.SerializeToString()))
        onnx.checker.check_model(found, full_check=True)
        print(f"{name}, {tool}: {[one.op_type for one in found.graph.node]}, runs differ: {is_random(found)}")
        assert is_random(found) == (tool == "onnxruntime" or name.endswith("input"))
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
