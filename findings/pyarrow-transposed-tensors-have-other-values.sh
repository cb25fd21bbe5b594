#!/bin/sh
# pyarrow 26.0.1: tensors of a transposed array, such as channels-last images from channels-first ones, come back with exchanged axes or values.
#
# `FixedShapeTensorArray.from_numpy_ndarray` does not copy an array whose axes were transposed. It stores the memory as it is, with a permutation. After
# an exchange of two axes, the whole array is right, but a single tensor (`array[i].to_numpy()` or `.to_tensor()`) has strides of the shape before the
# permutation, and so wrong values, also for matrices. After a cyclic permutation, such as (channels, height, width) to (height, width, channels), the
# permutation is applied in the wrong direction: the axes have another order, and if all axes have one length, the shape is right and the values are
# wrong. Some shapes raise an error because the strides leave the memory. For all others nothing is raised or logged, and Parquet keeps it. Pass
# `numpy.ascontiguousarray(values)`.
#
# Guess: the array and each of its tensors equal the given array.
# Seen, 2026-12-01: matrices of 3 by 4 that were transposed are right as a whole, and each single one is wrong. Images of 3 by 8 by 8 that were
# transposed to 8 by 8 by 3 come back as 8 by 3 by 8. Volumes of 4 by 4 by 4 have wrong values. After Parquet it is the same. Contiguous copies are right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'pyarrow==26.0.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import pyarrow
from pyarrow import parquet

print("pyarrow", pyarrow.__version__, "numpy", np.__version__)


def read(values):
    array = pyarrow.FixedShapeTensorArray.from_numpy_ndarray(values)
    parquet.write_table(pyarrow.table({"value": array}), f"{sys.argv[1]}/values.parquet")
    return array, parquet.read_table(f"{sys.argv[1]}/values.parquet")["value"].combine_chunks()


def verdict(found, expected):
    if found.shape != expected.shape:
        return f"shape {found.shape}"
    return "right" if np.array_equal(found, expected) else "other values"


CASES = [  # sizes and order of the axes, of which the first is the number of tensors; then the array, and a single tensor
    ((2, 3, 4), (0, 1, 2), "right", "right"),
    ((2, 3, 4), (0, 2, 1), "right", "other values"),
    ((2, 3, 8, 8), (0, 1, 3, 2), "right", "right"),
    ((2, 3, 8, 8), (0, 3, 2, 1), "right", "other values"),
    ((2, 3, 8, 8), (0, 2, 3, 1), "shape (2, 8, 3, 8)", "shape (8, 3, 8)"),
    ((2, 4, 4, 4), (0, 2, 3, 1), "other values", "other values"),
]
for sizes, order, whole, one in CASES:
    given = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes).transpose(order)
    for array in read(given):
        found = verdict(array.to_numpy_ndarray(), given), verdict(array[1].to_numpy(), given[1])
        assert verdict(array[1].to_tensor().to_numpy(), given[1]) == found[1]
        print(f"{sizes} as {order}, {given.shape}: the array is {found[0]}, a tensor is {found[1]}")
        assert found == (whole, one)
    for array in read(np.ascontiguousarray(given)):
        assert verdict(array.to_numpy_ndarray(), given) == verdict(array[1].to_numpy(), given[1]) == "right"
PY
"$dir/venv/bin/python" -W error "$dir/try.py" "$dir"
