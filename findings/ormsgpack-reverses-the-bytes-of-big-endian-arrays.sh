#!/bin/sh
# ormsgpack 1.13.1 with numpy 2.4.6: an array of big-endian numbers is packed as if it were little-endian, so 1 becomes 16777216.
#
# With `OPT_SERIALIZE_NUMPY`, ormsgpack packs NumPy arrays as lists of numbers. It knows the kind and the size of the type, and ignores its byte order.
# Arrays from FITS files, from `numpy.frombuffer` with a network format, or with the type ">f4" in their .npy file are big-endian. Their numbers are
# read with the bytes reversed. Floats become tiny numbers near 0 or huge ones, so a loss of 0.5 is read as 8.8e-44. Nothing is raised or logged.
# Arrays that are not contiguous in C order are refused. Scalars of NumPy are native and right. Convert the array
# before with `array.astype(array.dtype.newbyteorder("="))`.
#
# Guess: the values are packed, or the type is refused, as an array in Fortran order is.
# Seen, 2026-12-01: [0, 1, 2] as ">i4" becomes [0, 16777216, 33554432], and [0.5, 2.0] as ">f4" becomes [8.8e-44, 9e-44]. The same holds for all
# big-endian types with more than one byte. Converted arrays are right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'ormsgpack==1.13.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import io
import warnings

import numpy as np
import ormsgpack

warnings.simplefilter("error")
print("ormsgpack", ormsgpack.__version__, "numpy", np.__version__)


def packed(array):
    return ormsgpack.unpackb(ormsgpack.packb(array, option=ormsgpack.OPT_SERIALIZE_NUMPY))


def reversed_bytes(array):
    return array.view(array.dtype.newbyteorder("<")).tolist()


for kind in ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"):
    numbers = [0, 1, 2] if kind[0] in "iu" else [0.5, 2.0]
    array = np.array(numbers, ">" + kind)
    found = packed(array)
    print(f">{kind}: {array.tolist()} becomes {found}")
    assert found == reversed_bytes(array) != numbers
    assert packed(array.astype(array.dtype.newbyteorder("="))) == numbers == packed(np.array(numbers, "<" + kind))
    assert packed(array[1]) == numbers[1]

file = io.BytesIO()
np.save(file, np.array([1, 2], ">i4"))
file.seek(0)
array = np.load(file)
print(f"an array from a .npy file: {array.dtype}, {array.tolist()} becomes {packed(array)}")
assert packed(array) == [16777216, 33554432]
try:
    packed(np.asfortranarray(np.ones((2, 3))))
    raise AssertionError
except TypeError as error:
    print(f"an array in Fortran order: {error}")
PY
"$dir/venv/bin/python" "$dir/try.py"
