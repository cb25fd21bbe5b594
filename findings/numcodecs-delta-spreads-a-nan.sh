#!/bin/sh
# numcodecs 0.16.6 with zarr 3.1.6 and numpy 2.4.6: after one NaN, the filter `Delta` makes the rest of a chunk NaN, and after a large float32 it loses small ones.
#
# `Delta` stores the difference of each number to the one before it, and adds the differences up when it reads. For integers this is exact. For floats each difference
# is rounded, and the errors add up. A difference to NaN or infinity is NaN, so every later number of the chunk is read as NaN. A loss of 0.5 after one
# of 1e9 is read as 0.0. There is no error or warning, and the documentation says nothing about floats. The delta filter of blosc2 works on the bits, and is exact.
# Use `Shuffle` or Blosc for floats.
#
# Guess: a difference filter is exact, as all compressors are.
# Seen, 2026-11-30: [1, NaN, 2, 3] is read as [1, NaN, NaN, NaN], and [1, 1e9, 0.5, 3] as [1, 1e9, 0, 2.5], by numcodecs and by zarr of both formats. Of a
# million float32 normal numbers, nearly all are changed, by up to 5e-5.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numcodecs==0.16.6' 'zarr==3.1.6' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import numcodecs
import numpy as np
import zarr
import zarr.codecs.numcodecs

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3 specification")
delta = numcodecs.Delta(dtype="f4")
filters = {2: delta, 3: zarr.codecs.numcodecs.Delta(dtype="f4")}


def read(numbers, name):
    numbers = np.array(numbers, dtype=np.float32)
    found = delta.decode(delta.encode(numbers))
    for zarr_format, each in filters.items():
        path = f"{sys.argv[1]}/{name}{zarr_format}"
        array = zarr.create_array(path, shape=numbers.shape, dtype="f4", zarr_format=zarr_format, filters=[each], compressors=None)
        array[:] = numbers
        assert np.array_equal(zarr.open_array(path)[:], found, equal_nan=True)
    print(numbers.tolist(), "is read as", found.tolist())
    return found


print("numcodecs", numcodecs.__version__, "zarr", zarr.__version__)
nan = np.nan
assert np.array_equal(read([1, nan, 2, 3], "nan"), [1, nan, nan, nan], equal_nan=True)
assert np.array_equal(read([1, 1e9, 0.5, 3], "large"), [1, 1e9, 0, 2.5])
weights = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
errors = np.abs(delta.decode(delta.encode(weights)) - weights)
print("normal numbers:", float((errors > 0).mean()), "of them changed, by up to", float(errors.max()))
assert (errors > 0).mean() > 0.9 and errors.max() > 1e-5
integers = np.array([2**31 - 1, -(2**31), 5], dtype=np.int32)
exact = numcodecs.Delta(dtype="i4")
assert np.array_equal(exact.decode(exact.encode(integers)), integers)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
