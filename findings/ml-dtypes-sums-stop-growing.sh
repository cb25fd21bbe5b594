#!/bin/sh
# ml_dtypes 0.6.0 with numpy 2.4.6: the standard deviation of a million bfloat16 weights is 0.075 instead of 1.0.
#
# JAX, Orbax and safetensors read bfloat16 checkpoints as NumPy arrays of ml_dtypes. NumPy adds float16 values in pairs and with more precision.
# It adds values of ml_dtypes one after the other, and rounds each partial sum to the type. So a sum of equal values stops growing at 256 of
# them in bfloat16, and at 16 in float8_e4m3fn. `sum`, `mean`, `std`, `var` and `cumsum` are wrong without a warning, and more so for larger tensors, so
# a test with a small tensor passes. `@` and `numpy.linalg.norm` are right. A NaN also stops `sort`, `argsort` and `unique` from ordering the other
# values, and `median` then returns a number. Convert to float32 first.
#
# Guess: a sum is rounded to bfloat16 once, at its end, as for float16.
# Seen, 2026-11-29: 1000 ones have the mean 1.0 in float16, 0.256 in bfloat16 and 0.016 in float8_e4m3fn. [5, nan, 4, 3, 2, 1] is sorted to
# [5, nan, 1, 2, 3, 4] in bfloat16, and its median is 1.5. In float32 it is [1, 2, 3, 4, 5, nan], and nan.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numpy==2.4.6' 'ml_dtypes==0.6.0'
cat > "$dir/try.py" <<'PY'
import ml_dtypes
import numpy

print("ml_dtypes", ml_dtypes.__version__, "numpy", numpy.__version__)
means = {}
for dtype in (numpy.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
    ones = numpy.ones(1000, dtype)
    means[ones.dtype.name] = float(ones.mean())
    print(ones.dtype.name, "sum", ones.sum(), "mean", ones.mean(), "last of cumsum", ones.cumsum()[-1], "ones @ ones", ones @ ones)
    assert float(ones @ ones) == 1000
assert means == {"float16": 1.0, "bfloat16": 0.255859375, "float8_e4m3fn": 0.015625}

weights = numpy.random.default_rng(0).normal(size=1 << 20).astype(ml_dtypes.bfloat16)
for values in (weights[:100], weights):
    deviations = float(values.std()), float(values.astype("float32").std())
    print(values.size, "weights: std", deviations[0], "after a conversion to float32", deviations[1])
    if values.size == 100:
        assert abs(deviations[0] - deviations[1]) < 0.02
assert deviations[0] < 0.1
assert abs(deviations[1] - 1) < 0.01

medians = {}
for dtype in (numpy.float32, ml_dtypes.bfloat16):
    values = numpy.array([5, numpy.nan, 4, 3, 2, 1], dtype)
    medians[values.dtype.name] = float(numpy.median(values))
    print(values.dtype.name, "sorted", numpy.sort(values), "unique", numpy.unique(values), "median", numpy.median(values))
assert numpy.isnan(medians["float32"])
assert medians["bfloat16"] == 1.5
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
