#!/bin/sh
# onnxruntime 1.32.0 with onnx 1.23.2 and numpy 2.4.6: `ReduceMax` and `ReduceMin` return NaN only if it is the first number, and a mean of 10 million is 1 % wrong.
#
# On a CPU, `ReduceMax` keeps the larger number of each comparison, and a comparison with NaN is false. So a NaN at the first position is kept, and at any other position it is dropped.
# A check for NaN by the largest and smallest weight or output, as in calibration, passes for most diverged tensors. `ReduceSum` and `ReduceMean` return NaN, but they
# add float32 numbers one after the other, and lose more digits than NumPy. There is no error or warning. `numpy.max` and `numpy.min` return NaN at each position.
#
# Guess: the largest of numbers with a NaN is NaN, or always the largest of the other numbers.
# Seen, 2026-11-30: for 3, 8 and 100 numbers, both return NaN if the first number is NaN, and a number for each other position. The mean of 10^7 times 0.1 in float32 is
# 0.1011, and 0.1000 in NumPy.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'onnxruntime==1.32.0' 'onnx==1.23.2' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import numpy as np
import onnx
import onnxruntime
from onnx import helper


def reduced(operator, numbers):
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", ["n"]), ("y", []))]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], keepdims=0)], "reduce", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(session.run(None, {"x": numbers})[0])


print("onnxruntime", onnxruntime.__version__, "onnx", onnx.__version__)
for operator in ("ReduceMax", "ReduceMin", "ReduceSum"):
    for count in (3, 8, 100):
        positions = []
        for position in range(count):
            numbers = np.arange(count, dtype=np.float32)
            numbers[position] = np.nan
            assert np.isnan([numbers.max(), numbers.min(), numbers.sum()]).all()
            positions += [position] * int(np.isnan(reduced(operator, numbers)))
        print(f"{operator} of {count} numbers is NaN for a NaN at", positions if len(positions) < count else "each position")
        assert positions == (list(range(count)) if operator == "ReduceSum" else [0])
numbers = np.full(10**7, 0.1, dtype=np.float32)
means = reduced("ReduceMean", numbers), float(numbers.mean())
print("ReduceMean of 10^7 times 0.1:", means[0], "numpy", means[1])
assert 0.0005 < abs(means[0] - 0.1) and abs(means[1] - 0.1) < 1e-6
PY
"$dir/venv/bin/python" "$dir/try.py" 2>/dev/null
