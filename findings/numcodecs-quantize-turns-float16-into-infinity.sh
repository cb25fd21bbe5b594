#!/bin/sh
# numcodecs 0.16.6 with numpy 2.4.6: `Quantize(digits=3)` turns float16 numbers of 64 and more into infinity, also in zarr.
#
# `Quantize` keeps the given number of decimal places. It computes `around(scale * values) / scale` in the type of the array, with a scale of 1024
# for three digits. In float16 the product of 64 and 1024 is above the largest number, 65504, so infinity is stored. With four digits the limit is 4.
# With five digits the scale itself is infinite, and each number becomes NaN. Only a RuntimeWarning of NumPy is issued. From 2 on, float16
# numbers are more than 0.001 apart, so the codec has nothing to round in those that it destroys. `BitRound` has no such limit.
#
# Guess: numbers that are too large to have three decimal places are kept.
# Seen, 2026-11-30: with three digits 63.9 is kept, and 64, 100 and 1000 become infinity, also in a zarr array of format 2. With four digits 4
# becomes infinity, with five 0.1 becomes NaN.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numcodecs==0.16.6' 'zarr==3.1.6' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import numcodecs
import numpy as np
import zarr

values = np.array([0.1, 3.9, -4.0, 63.9, 64.0, -100.0, 1000.0], dtype=np.float16)


def read(digits):
    codec = numcodecs.Quantize(digits=digits, dtype="f2")
    return codec.decode(codec.encode(values))


print("numcodecs", numcodecs.__version__, "zarr", zarr.__version__)
for digits in (3, 4, 5):
    print(values, "with", digits, "digits is read as", read(digits))
assert np.isinf(read(3)).tolist() == [False] * 4 + [True] * 3
assert np.isinf(read(4)).tolist() == [False] * 2 + [True] * 5
assert np.isnan(read(5)).all()

path, codec = sys.argv[1] + "/array", numcodecs.Quantize(digits=3, dtype="f2")
array = zarr.create_array(path, shape=values.shape, dtype="f2", zarr_format=2, filters=[codec], compressors=None)
array[:] = values
print("zarr:", array[:])
assert np.array_equal(array[:], read(3))
rounded = numcodecs.BitRound(keepbits=7).decode(numcodecs.BitRound(keepbits=7).encode(values)).view(np.float16)
assert np.isfinite(rounded).all()
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
