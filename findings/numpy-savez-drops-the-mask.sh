#!/bin/sh
# numpy 2.4.6: `numpy.savez` saves a masked array without its mask, so that hidden values come back as data.
#
# A masked array is an array whose invalid entries are hidden. `savez`, `savez_compressed`, and `save` into an open file in memory write the values under the mask, and not
# the mask, without an error or a warning. `save` to a file name ends in NotImplementedError, and leaves a file with a header and no data. So a mean over
# the loaded array contains the values that were hidden, such as -9999 for "missing". netCDF4 returns masked arrays by default. Save `x.filled(...)`, or the data
# and the mask as two arrays.
#
# Guess: a masked array that cannot be saved is refused, as `save` to a file name refuses it.
# Seen, 2026-11-30: [1, hidden -9999, 3] has the mean 2.0 before, and -3331.67 after `savez`. `save` to `io.BytesIO` and
# `safetensors.numpy` 0.8.0 give the same array.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numpy==2.4.6' 'safetensors==0.8.0'
cat > "$dir/try.py" <<'PY'
import io
import sys
import warnings

import numpy as np
import safetensors
import safetensors.numpy

warnings.simplefilter("error")
losses = np.ma.masked_equal([1.0, -9999.0, 3.0], -9999.0)


def through(save):
    file = io.BytesIO()
    save(file)
    file.seek(0)
    return np.load(file)


print("numpy", np.__version__, "safetensors", safetensors.__version__, "in memory:", losses, "mean", losses.mean())
np.savez(sys.argv[1] + "/file.npz", losses=losses)
found = {
    "savez to a file": np.load(sys.argv[1] + "/file.npz")["losses"],
    "savez": through(lambda file: np.savez(file, losses=losses))["losses"],
    "savez_compressed": through(lambda file: np.savez_compressed(file, losses=losses))["losses"],
    "save": through(lambda file: np.save(file, losses)),
    "safetensors": safetensors.numpy.load(safetensors.numpy.save({"losses": losses}))["losses"],
}
assert losses.mean() == 2
for name, array in found.items():
    print(name, type(array).__name__, array, "mean", array.mean())
    assert array.tolist() == [1, -9999, 3] and not np.ma.isMaskedArray(array)
try:
    np.save(sys.argv[1] + "/file.npy", losses)
except NotImplementedError as error:
    with open(sys.argv[1] + "/file.npy", "rb") as file:
        size = len(file.read())
    print("save to a file name:", error, f"The file has {size} bytes.")
    assert size == 128
else:
    raise SystemExit("a masked array can be saved to a file name")
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
