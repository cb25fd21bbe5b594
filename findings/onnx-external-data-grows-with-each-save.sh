#!/bin/sh
# onnx 1.23.2: each save of a model with external data to the same path appends the weights, and the old ones remain in the file forever.
#
# `onnx.save(model, "out/model.onnx", save_as_external_data=True, location="model.data")` opens an existing out/model.data and writes at its end. The new model
# refers to the new part, so it loads correctly, and nothing reports that the file grows. `convert_model_to_external_data` is
# documented to raise FileExistsError if the location exists. It looks for `location` in the working directory, not in the directory of the
# model. So the error depends on where the program runs. An upload contains all earlier weights. Delete the file before each save.
#
# Guess: the file is replaced, or FileExistsError is raised.
# Seen, 2026-11-30: three saves of 12,000 bytes of weights give a file of 12,000, 24,000 and 36,000 bytes. In the directory of the model, the second save
# raises FileExistsError.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'onnx==1.23.2' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import os
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper


def built(value):
    vectors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3000]) for name in "xy"]
    weights = numpy_helper.from_array(np.full(3000, value, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", vectors[:1], vectors[1:], [weights])
    return helper.make_model(graph)


def save(path, value):
    onnx.save(built(value), path, save_as_external_data=True, location="model.data")


print("onnx", onnx.__version__)
os.mkdir(sys.argv[1] + "/out")
path = sys.argv[1] + "/out/model.onnx"
sizes = []
for epoch in range(3):
    save(path, epoch)
    sizes.append(os.path.getsize(sys.argv[1] + "/out/model.data"))
    assert (numpy_helper.to_array(onnx.load(path).graph.initializer[0]) == epoch).all()
print("sizes of model.data after each save:", sizes)
assert sizes == [12_000, 24_000, 36_000]
data = np.fromfile(sys.argv[1] + "/out/model.data", dtype=np.float32)
assert np.unique(data).tolist() == [0.0, 1.0, 2.0]

os.chdir(sys.argv[1] + "/out")
try:
    save("model.onnx", 3)
except FileExistsError as error:
    print("in the directory of the model:", type(error).__name__)
else:
    raise SystemExit("the save in the directory of the model succeeds")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
