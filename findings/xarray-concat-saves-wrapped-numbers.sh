#!/bin/sh
# xarray 2026.9.0 with netCDF4 1.7.5.1.post1: `concat` of two files of packed numbers is saved with wrong numbers: 100 becomes -31.072.
#
# Many netCDF and zarr files store floats as short integers with a `scale_factor`. xarray reads them as floats, and remembers the scale in `encoding`. `concat`
# keeps the encoding of the first file, and `to_netcdf` and `to_zarr` apply it to all numbers. A number outside the range of the first file, but within that of its
# own file, wraps around to a plausible number. So do numbers that were changed in place. There is no error or warning. The numbers in memory are
# right. Call `drop_encoding()` before the save.
#
# Guess: numbers that do not fit into the integers are refused, or saved as floats.
# Seen, 2026-11-30: files of [1, 2] with the scale 0.001 and of [100, 200] with the scale 0.01 are saved as [1, 2, -31.072, 3.392]. In the other order, and
# with `drop_encoding()`, all numbers are right. In a netCDF file and in zarr the numbers are the same.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'xarray==2026.9.0' 'netCDF4==1.7.5.1.post1' 'zarr==3.1.6' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import numpy as np
import xarray as xr

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "numpy.ndarray size changed")
warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")


def write(name, numbers, scale):
    packing = {"dtype": "int16", "scale_factor": scale, "_FillValue": -32768}
    xr.Dataset({"loss": ("step", numbers)}).to_netcdf(f"{sys.argv[1]}/{name}.nc", encoding={"loss": packing})
    return xr.load_dataset(f"{sys.argv[1]}/{name}.nc")


def saved(name, dataset):
    dataset.to_netcdf(f"{sys.argv[1]}/{name}.nc")
    dataset.to_zarr(f"{sys.argv[1]}/{name}.zarr", zarr_format=2)
    found = xr.load_dataset(f"{sys.argv[1]}/{name}.nc").loss.values
    assert np.array_equal(found, xr.open_zarr(f"{sys.argv[1]}/{name}.zarr").loss.values)
    print(f"{name}: in memory {dataset.loss.values.tolist()}, saved {found.tolist()}")
    return found


print("xarray", xr.__version__)
small, large = write("small", [1.0, 2.0], 0.001), write("large", [100.0, 200.0], 0.01)
assert np.allclose(small.loss, [1, 2]) and np.allclose(large.loss, [100, 200])
assert np.allclose(saved("small-large", xr.concat([small, large], "step")), [1, 2, -31.072, 3.392])
assert np.allclose(saved("large-small", xr.concat([large, small], "step")), [100, 200, 1, 2])
assert np.allclose(saved("without-encoding", xr.concat([small, large], "step").drop_encoding()), [1, 2, 100, 200])
small.loss[0] = 40
assert np.allclose(saved("in-place", small), [-25.536, 2])
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
