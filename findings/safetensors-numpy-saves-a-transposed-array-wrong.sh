#!/bin/sh
# safetensors 0.8.0 with numpy 2.4.6: `safetensors.numpy` saves a transposed array with its values in the wrong places, without an error.
#
# `save` and `save_file` write the bytes from the start of an array's memory, and never look at its strides. So `x.T`, an array in Fortran order, and a part
# such as `x[:, 1:]` are saved with their shape and dtype, but with other values in most places. Transposition and `scipy.linalg` return arrays in Fortran
# order. The docstring asks for contiguous arrays, and an array in Fortran order is contiguous for NumPy. `safetensors.torch`
# refuses such tensors with a ValueError. Save `numpy.ascontiguousarray(x)`.
#
# Guess: the values are saved as `numpy.save` does, or the array is refused.
# Seen, 2026-11-30: [[0, 3], [1, 4], [2, 5]], the transpose of a 2 x 3 array, is loaded as [[0, 1], [2, 3], [4, 5]]. The orthogonal matrix of
# a QR decomposition by scipy 1.17.1 is loaded as its transpose. A copy by `ascontiguousarray` is loaded correctly.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'safetensors==0.8.0' 'numpy==2.4.6' 'scipy==1.17.1'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import safetensors
import scipy.linalg
from safetensors.numpy import load, load_file, save, save_file


def loaded(array):
    """The array after `save` and `load`, which must equal the one after `save_file` and `load_file`."""
    found = load(save({"x": array}))["x"]
    save_file({"x": array}, sys.argv[1] + "/x.safetensors")
    assert np.array_equal(found, load_file(sys.argv[1] + "/x.safetensors")["x"])
    print(array.tolist(), "is loaded as", found.tolist())
    assert found.shape == array.shape and found.dtype == array.dtype
    assert np.array_equal(load(save({"x": np.ascontiguousarray(array)}))["x"], array)
    return found


print("safetensors", safetensors.__version__, "numpy", np.__version__)
x = np.arange(6, dtype=np.float32).reshape(2, 3)
assert np.array_equal(loaded(x), x)
assert loaded(x.T).tolist() == [[0, 1], [2, 3], [4, 5]]
assert loaded(np.asfortranarray(x)).tolist() == [[0, 3, 1], [4, 2, 5]]
assert loaded(x[:, 1:]).tolist() == [[1, 2], [3, 4]]
orthogonal, _ = scipy.linalg.qr(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]]))
assert orthogonal.flags.f_contiguous and not np.array_equal(orthogonal, orthogonal.T)
assert np.array_equal(loaded(orthogonal), orthogonal.T)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
