#!/bin/sh
# imagecodecs 2026.3.6 with tifffile 2026.3.3 and numpy 2.4.6: LERC without loss reads NaN as 0, also through a TIFF file of tifffile.
#
# LERC is a codec for float images and maps. `lerc_encode` compresses without loss by default, and tifffile uses it for `compression="lerc"`. NaN is
# encoded in a mask of invalid pixels. `lerc_decode` has the argument `masks`, which is false by default, and then returns the array with zeros at these
# pixels and without the mask. tifffile calls it in this way. Infinity, the sign of zero and all other numbers are exact, in float32 and float64.
# Nothing is raised or logged. A weight that diverged or a pixel without data becomes a plausible 0, and a mean that should be NaN or should skip the
# pixels counts them. The file contains the mask, so `lerc_decode(data, masks=True)` recovers it. Other codecs of tifffile keep NaN.
#
# Guess: a codec without loss keeps NaN, or refuses it.
# Seen, 2026-12-01: one NaN among 16 numbers is read as 0, and 16 NaN as 16 zeros, in float32 and float64, directly and through TIFF. With `masks=True`
# the mask is false at these places. With "zstd" and "deflate" in TIFF, all numbers are exact.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'imagecodecs==2026.3.6' 'tifffile==2026.3.3' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import imagecodecs
import numpy as np
import tifffile

warnings.simplefilter("error")
print("imagecodecs", imagecodecs.__version__, imagecodecs.lerc_version(), "tifffile", tifffile.__version__, "numpy", np.__version__)


def through_tiff(array, compression):
    tifffile.imwrite(sys.argv[1] + "/image.tif", array, compression=compression)
    return tifffile.imread(sys.argv[1] + "/image.tif")


for dtype in (np.float32, np.float64):
    numbers = (np.arange(16) / 3).reshape(4, 4).astype(dtype)
    numbers[0, :2] = -0.0, np.inf
    assert imagecodecs.lerc_decode(imagecodecs.lerc_encode(numbers)).tobytes() == numbers.tobytes()
    one = numbers.copy()
    one[1, 1] = np.nan
    for array in (one, np.full((4, 4), np.nan, dtype)):
        missing = np.isnan(array)
        direct, tiff = imagecodecs.lerc_decode(imagecodecs.lerc_encode(array)), through_tiff(array, "lerc")
        _, valid = imagecodecs.lerc_decode(imagecodecs.lerc_encode(array), masks=True)
        print(f"{array.dtype}, {missing.sum()} NaN: read as {direct[missing].tolist()}, through TIFF {tiff[missing].tolist()}")
        assert direct.dtype == tiff.dtype == array.dtype and np.array_equal(direct, tiff)
        assert (direct[missing] == 0).all() and np.array_equal(direct[~missing], array[~missing])
        assert np.array_equal(valid, ~missing)
        for compression in ("zstd", "deflate"):
            assert np.array_equal(through_tiff(array, compression), array, equal_nan=True)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
