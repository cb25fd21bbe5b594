#!/bin/sh
# onnx 1.23.2: a model that was saved with external data once is saved without its weights from then on.
#
# `onnx.save_model(model, path, save_as_external_data=True)` empties the tensors of `model` itself and leaves references to the file that
# it wrote. A second call writes only those references, with or without `save_as_external_data`, and reports nothing. With one folder for
# each epoch only the first folder holds weights; the others cannot be loaded. Save a copy of the model instead. A fresh model that is saved
# under the same name appends to the data file, which grows with every save.
#
# Seen: 12,000 bytes of weights in the first folder; one file of 244 bytes in the second and third; 24,000 bytes after a fresh model was
# saved into the first again.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'onnx==1.23.2' numpy
cat > "$dir/try.py" <<'PY'
import pathlib
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

ROOT = pathlib.Path(sys.argv[1])


def made():
    weights = [numpy_helper.from_array(np.full(1000, i, "f4"), f"w{i}") for i in range(3)]
    nodes = [helper.make_node("Sum", ["w0", "w1", "w2"], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 1, [1000])], weights))


def saved(model, folder, **how):
    (ROOT / folder).mkdir(exist_ok=True)
    onnx.save_model(model, ROOT / folder / "m.onnx", **how)
    sizes = {path.name: path.stat().st_size for path in (ROOT / folder).iterdir()}
    try:
        onnx.load(ROOT / folder / "m.onnx")
        loads = True
    except onnx.checker.ValidationError:
        loads = False
    print(f"{folder}: {sizes}, {'loads' if loads else 'cannot be loaded'}")
    return sizes, loads


outside = {"save_as_external_data": True, "location": "m.data"}
model = made()
first, second, third = saved(model, "epoch-1", **outside), saved(model, "epoch-2", **outside), saved(model, "epoch-3")
again = saved(made(), "epoch-1", **outside)
assert first[1] and first[0]["m.data"] == 12_000, first
for sizes, loads in (second, third):
    assert not loads and set(sizes) == {"m.onnx"} and sizes["m.onnx"] < 1000, sizes
assert again[1] and again[0]["m.data"] == 24_000, again
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
