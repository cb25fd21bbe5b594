#!/bin/sh
# openvino 2026.4.1 with numpy 2.4.6: by default `save_model` turns NaN and infinite weights into 65504, and 1e-9 into 0.
#
# `save_model` stores float32 weights as float16, unless it is called with `compress_to_fp16=False`. Weights outside the range of float16 are replaced by
# the largest number of float16, and NaN is treated as one of them. So a diverged model is saved as one with finite weights, and every later check for
# NaN passes. There is no error or warning. `numpy.astype` keeps NaN and infinity. A mask of -3.4e38 becomes -65504. If nearly all weights of
# a tensor are outside the range, the tensor is unchanged in float32, so what happens to a weight depends on its neighbours. Save with
# `compress_to_fp16=False`, or check weights before the save.
#
# Guess: NaN is still NaN in float16, and a weight of 1e5 is infinite, refused, or leaves its tensor in float32.
# Seen, 2026-11-30: among 60 weights of 0.5, NaN, infinity, 1e5 and 3e38 are loaded as 65504, -1e5 as -65504, and 1e-9 as 0. A tensor of ten NaNs
# and one 0.5 is loaded unchanged. With `compress_to_fp16=False` all are unchanged.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'openvino==2026.4.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import openvino
from openvino import opset13 as ops


def loaded(weights, **options):
    """The weights of a model after `save_model` and `read_model`, in float32."""
    weights = np.array(weights, dtype=np.float32)
    inputs = ops.parameter([len(weights)], np.float32)
    path = sys.argv[1] + "/model.xml"
    openvino.save_model(openvino.Model([ops.multiply(inputs, ops.constant(weights))], [inputs]), path, **options)
    constants = [node for node in openvino.Core().read_model(path).get_ordered_ops() if node.get_type_name() == "Constant"]
    return constants[0].get_data().astype(np.float32)


nan, infinity = np.nan, np.inf
print("openvino", openvino.__version__)
special = [nan, infinity, 1e5, 3e38, -1e5, 1e-9]
found = loaded(special + [0.5] * 60)
print(special, "is loaded as", found[:6].tolist())
assert found.tolist() == [65504, 65504, 65504, 65504, -65504, 0] + [0.5] * 60
found = loaded([nan] * 10 + [0.5])
print("ten NaNs and 0.5 are loaded as", found.tolist())
assert np.isnan(found).sum() == 10
found = loaded(special + [0.5] * 60, compress_to_fp16=False)
print("with compress_to_fp16=False:", found[:6].tolist())
assert np.array_equal(found[:6], np.array(special, dtype=np.float32), equal_nan=True)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir" 2>/dev/null
