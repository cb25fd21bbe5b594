#!/bin/sh
# h5py 3.16.0 with numpy 2.4.6: with `scaleoffset`, a NaN is read as the lowest number of its chunk, or makes the chunk unreadable.
#
# `create_dataset(..., scaleoffset=3)` keeps three decimal places of floats. The filter of HDF5 subtracts the lowest number of a chunk, and stores the
# differences as short integers. There is no integer for NaN, and it is read as the lowest number, without an error or a warning. So a
# curve of losses with a missing or diverged entry has a plausible number in its place. If the first number of the chunk is NaN, the chunk is
# unchanged in float64. In float32 the write succeeds, and each read fails. If a number is infinite or very large, the chunk is unchanged, with its NaN.
# So what happens to a NaN depends on its neighbours. Use gzip with the shuffle filter.
#
# Guess: NaN is kept, or refused with an error at the write.
# Seen, 2026-11-30: [1.5, NaN, -5.5] is read as [1.5, -5.5, -5.5], for float32 and float64. [NaN, 1.5, -5.5] is read as it was written for float64, and
# raises OSError for float32. [1.5, NaN, -5.5, infinity] is read as it was written.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'h5py==3.16.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import h5py
import numpy as np

nan, inf = np.nan, np.inf


def read(values, kind, **options):
    with h5py.File(sys.argv[1] + "/file.h5", "w") as file:
        file.create_dataset("losses", data=np.array(values, dtype=kind), chunks=(len(values),), **options)
    with h5py.File(sys.argv[1] + "/file.h5") as file:
        found = file["losses"][:]
    print(kind.__name__, options, values, "is read as", found.tolist())
    return found


print("h5py", h5py.__version__, "HDF5", h5py.version.hdf5_version)
for kind in (np.float32, np.float64):
    assert np.allclose(read([1.5, nan, -5.5], kind, scaleoffset=3), [1.5, -5.5, -5.5])
    for values in ([1.5, nan, -5.5, inf], [1.5, nan, -5.5, 1e30]):
        assert np.array_equal(read(values, kind, scaleoffset=3), np.array(values, dtype=kind), equal_nan=True)
    assert np.array_equal(read([1.5, nan, -5.5], kind, compression="gzip", shuffle=True), [1.5, nan, -5.5], equal_nan=True)
assert np.array_equal(read([nan, 1.5, -5.5], np.float64, scaleoffset=3), [nan, 1.5, -5.5], equal_nan=True)
try:
    read([nan, 1.5, -5.5], np.float32, scaleoffset=3)
except OSError as error:
    print("float32", [nan, 1.5, -5.5], "cannot be read:", error)
else:
    raise SystemExit("a float32 chunk that begins with NaN can be read")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
