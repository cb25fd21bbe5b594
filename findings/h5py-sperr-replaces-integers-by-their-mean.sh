#!/bin/sh
# h5py 3.16.0 with hdf5plugin 7.1.0 and numpy 2.4.6: with `Sperr(absolute=0.001)`, each integer of an array is read as the mean of the array.
#
# SPERR compresses floats with an error bound. Its HDF5 filter checks the type and refuses integers and complex numbers. But h5py marks every filter
# as optional. The documentation of HDF5 says that an optional filter is skipped if it refuses the type. HDF5 ignores the refusal and applies the
# filter. SPERR then reads each 4 or 8 bytes as a float. The bits of small integers are floats very close to 0, so all of them are equal within the
# error bound. Nothing is raised or logged, and the dataset keeps its type and shape. A function that writes all arrays of a dict with the same
# options loses the class labels, ids and masks among them. Complex64 numbers are read as huge numbers. Use lossy options only for floats. If the
# filter is marked as mandatory, which needs the low-level functions of h5py, HDF5 refuses the dataset.
#
# Guess: integers are refused, or stored without compression.
# Seen, 2026-12-01: 64 x 64 labels from 0 to 9 are all read as 4, in int32 and in int64, and ids below 50,000 all as about 25,000. Float32 and float64
# are within 0.001. With the mandatory mark, the creation raises "Only floats are supported in H5Z-SPERR". With `Zfp`, complex64 is stored exactly.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'h5py==3.16.0' 'hdf5plugin==7.1.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import h5py
import hdf5plugin
import numpy as np

warnings.simplefilter("error")
print("h5py", h5py.__version__, "HDF5", h5py.version.hdf5_version, "hdf5plugin", hdf5plugin.version, "numpy", np.__version__)
FILE = sys.argv[1] + "/data.h5"
sperr = hdf5plugin.Sperr(absolute=1e-3)
random = np.random.default_rng(0)


def loaded(array, **options):
    with h5py.File(FILE, "w") as file:
        file.create_dataset("x", data=array, chunks=array.shape, **options)
    with h5py.File(FILE, "r") as file:
        found = file["x"][:]
    assert found.dtype == array.dtype and found.shape == array.shape
    return found


for dtype in (np.float32, np.float64):
    array = random.normal(size=(64, 64)).astype(dtype)
    error = np.abs(loaded(array, **sperr) - array).max()
    print(f"{array.dtype}: largest error {error:.5f}")
    assert 0 < error <= 1e-3
for name, highest in (("labels", 10), ("ids", 50_000)):
    for dtype in (np.int32, np.int64):
        array = random.integers(0, highest, (64, 64)).astype(dtype)
        found = loaded(array, **sperr)
        print(f"{name} in {array.dtype}: {len(np.unique(array))} different numbers with mean {array.mean():.1f}, read as {np.unique(found).tolist()}")
        assert len(np.unique(found)) == 1 and abs(found[0, 0] - array.mean()) < highest / 10
        assert np.array_equal(loaded(array, **hdf5plugin.Zstd()), array)
array = (random.normal(size=(64, 64)) + 1j * random.normal(size=(64, 64))).astype(np.complex64)
with np.errstate(all="ignore"):
    error = np.abs(loaded(array, **sperr).astype(np.complex128) - array)
print(f"complex64: largest error {np.nanmax(error):.3g}, share of numbers within 0.01: {np.mean(error < 0.01):.3f}")
assert np.nanmax(error) > 1e6 and np.mean(error < 0.01) < 0.01
assert np.array_equal(loaded(array, **hdf5plugin.Zfp(accuracy=1e-3)), array)

for flag in ("OPTIONAL", "MANDATORY"):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((64, 64))
    properties.set_filter(sperr.filter_id, getattr(h5py.h5z, f"FLAG_{flag}"), sperr.filter_options)
    with h5py.File(FILE, "w") as file:
        try:
            h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((64, 64)), properties)
            error = None
        except ValueError as raised:
            error = raised
    print(f"int32, filter marked as {flag}: {error or 'created'}")
    assert (error is None) == (flag == "OPTIONAL")
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
