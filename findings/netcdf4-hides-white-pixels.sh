#!/bin/sh
# netCDF4 1.7.5.1.post1 for Python: reading an array of bytes masks the value 255, and of int8 the value -127, although no fill value was set.
#
# netCDF defines a default fill value for each type, which marks values that were never written. The Python package masks it when it reads, also for
# one-byte types, in which every value is ordinary data. So white pixels of images, and the smallest number of symmetric int8 quantization, are
# masked: `mean`, `min` and `max` skip them, and arithmetic keeps the mask. `xarray` reads the same file without a mask, so programs that use
# different readers train with different data. Nothing is raised or logged. Call `set_auto_mask(False)` on the data set, or write with `fill_value=False`.
#
# Guess: one-byte types have no default fill value, or a value that was written is not masked.
# Seen, 2026-11-30: of [0, 255, 255] two values are masked, and the mean is 0.0 instead of 170.0. xarray 2026.9.0 returns all values. With
# `fill_value=False` nothing is masked.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'netCDF4==1.7.5.1.post1' 'xarray==2026.9.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import netCDF4
import numpy as np
import xarray

print("netCDF4", netCDF4.__version__, "xarray", xarray.__version__)


def written(name, values, **options):
    path = f"{sys.argv[1]}/{name}.nc"
    with netCDF4.Dataset(path, "w") as data:
        data.createDimension("n", len(values))
        data.createVariable("values", values.dtype, ("n",), **options)[:] = values
    return path


pixels, codes = np.uint8([0, 255, 255]), np.int8([-127, 0, 127])
for name, values, hidden in (("pixels", pixels, 2), ("codes", codes, 1)):
    path = written(name, values)
    with netCDF4.Dataset(path) as data:
        found = data["values"][:]
        attributes = data["values"].ncattrs()
        data.set_auto_mask(False)
        unmasked = data["values"][:]
    with xarray.open_dataset(path) as data:
        by_xarray = data["values"].values
    print(name, "netCDF4:", found, "mean:", found.mean(), "xarray:", by_xarray, "mean:", by_xarray.mean(), "attributes:", attributes)
    assert attributes == [] and np.ma.count_masked(found) == hidden
    assert np.array_equal(by_xarray, values) and np.array_equal(unmasked, values)
    with netCDF4.Dataset(written(name + "-no-fill", values, fill_value=False)) as data:
        assert np.ma.count_masked(data["values"][:]) == 0
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
