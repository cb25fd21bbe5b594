#!/bin/sh
# openvino 2026.4.1 with numpy 2.4.6: a layer with NaN weights and a ReLU gives zeros, and the exponential of NaN is infinity.
#
# On an x86 CPU, the plugin computes ReLU, `clamp` and `maximum` with an instruction that returns the other number if one is NaN. Before it computes `exp`, it limits
# its input in the same way, so NaN becomes the largest input. `sigmoid`, `tanh` and `gelu` return NaN. So a diverged or damaged model with a ReLU in each layer has finite
# outputs, and a check of the outputs for NaN passes. NumPy returns NaN in all cases. Check the weights, or the outputs in the framework of the training.
#
# Guess: a NaN weight makes the outputs NaN.
# Seen, 2026-11-30: with a NaN weight for each output, the layer returns [NaN, NaN], and [0, 0] with a ReLU. `clamp` to 0 ... 6 and `maximum` with 0 also return 0,
# `exp` returns infinity, and `hard_sigmoid` 1. The same with the instructions limited to AVX2 and SSE 4.1.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'openvino==2026.4.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import numpy as np
import openvino
from openvino import opset13 as ops

nan, infinity = np.nan, np.inf


def number(value):
    return ops.constant(np.float32(value))


def computed(name, function, numbers):
    numbers = np.array(numbers, dtype=np.float32)
    inputs = ops.parameter(list(numbers.shape), np.float32)
    model = openvino.Core().compile_model(openvino.Model([function(inputs)], [inputs]), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = model([numbers])[0]
    print(f"{name} of {numbers.tolist()} is {found.tolist()}")
    return found


print("openvino", openvino.__version__)
weights = ops.constant(np.array([[0.5, nan], [nan, 2.0], [1.0, 1.0]], dtype=np.float32))
layer = lambda x: ops.matmul(x, weights, False, False)
assert np.isnan(computed("layer", layer, [[1, 2, 3]])).all()
assert computed("layer with ReLU", lambda x: ops.relu(layer(x)), [[1, 2, 3]]).tolist() == [[0, 0]]
for name, function, expected in (
    ("relu", ops.relu, 0),
    ("clamp", lambda x: ops.clamp(x, 0.0, 6.0), 0),
    ("maximum", lambda x: ops.maximum(x, number(0)), 0),
    ("exp", ops.exp, infinity),
    ("hard_sigmoid", lambda x: ops.hard_sigmoid(x, number(0.2), number(0.5)), 1),
):
    assert computed(name, function, [nan]).tolist() == [expected]
for name, function in (("sigmoid", ops.sigmoid), ("tanh", ops.tanh), ("gelu", lambda x: ops.gelu(x, "erf"))):
    assert np.isnan(computed(name, function, [nan])).all()
PY
for instructions in DEFAULT AVX2 SSE41; do
    echo "instructions: $instructions"
    ONEDNN_MAX_CPU_ISA=$instructions "$dir/venv/bin/python" "$dir/try.py" 2>/dev/null
done
