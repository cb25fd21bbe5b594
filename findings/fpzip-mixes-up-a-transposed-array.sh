#!/bin/sh
# fpzip 1.2.5 with numpy 2.4.6: a transposed array in memory is compressed in the order of its bytes, and read with other values.
#
# fpzip compresses float32 and float64, without loss by default. `compress` and `decompress` have the argument `order`, with "C" as default, and NumPy
# users know that such an argument describes the result, not the input. `compress` copies an array only if it is contiguous in neither order. An
# array in Fortran order, such as a transposed weight, `np.asfortranarray(x)` or a matrix of LAPACK, is read in the order of its bytes, with the shape of the array.
# `order="F"` does the reverse: an array in C order is mixed up. The shape, the type and the set of values are right. Nothing is raised or logged.
# The result is also 4-dimensional. Compress `np.ascontiguousarray(x)`.
#
# Guess: the values are kept for each layout of the input, since the mode is without loss.
# Seen, 2026-12-01: of arrays with 2 to 4 dimensions, those in C order and slices with a step are exact. Those in Fortran order have other values, as if
# the bytes had been read in C order. With `order="F"`, those in C order have.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'fpzip==1.2.5' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import warnings

import fpzip
import numpy as np

warnings.simplefilter("error")
print("fpzip", importlib.metadata.version("fpzip"), "numpy", np.__version__)
random = np.random.default_rng(0)


def found(array, order):
    options = {} if order == "C" else {"order": order}
    result = fpzip.decompress(fpzip.compress(array, **options), **options)
    assert result.dtype == array.dtype and result.ndim == 4
    return result.reshape(array.shape, order=order)


for dtype in (np.float32, np.float64):
    for shape in ((3, 5), (3, 4, 5), (2, 3, 4, 5)):
        x = random.normal(size=shape).astype(dtype)
        padded = np.zeros([2 * size for size in shape], dtype)
        step = padded[tuple(slice(None, None, 2) for _ in shape)]
        step[...] = x
        layouts = {"C": x, "Fortran": np.asfortranarray(x), "step": step}
        exact = {(name, order): np.array_equal(found(array, order), x) for name, array in layouts.items() for order in "CF"}
        print(f"{np.dtype(dtype)} {shape}: exact {exact}")
        assert all(right == (name == "step" or name[0] == order) for (name, order), right in exact.items())
        mixed = found(layouts["Fortran"], "C")
        assert np.array_equal(mixed, x.reshape(-1, order="F").reshape(shape)) and np.array_equal(np.sort(mixed, axis=None), np.sort(x, axis=None))
PY
"$dir/venv/bin/python" "$dir/try.py"
