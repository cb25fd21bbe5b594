#!/bin/sh
# zarr 3.1.6 and tensorstore 0.1.86 with h5py 3.16.0 and numpy 2.4.6: an array that shrinks and grows again has some of its removed rows.
#
# A run that resumes from an earlier step cuts its arrays with `resize` and makes them longer again. New elements should have the fill value. `resize` of
# zarr deletes the chunks outside of the new shape, and leaves the chunk on the border unchanged in the store. Its elements behind the new end are
# hidden, and they are visible again when the array grows. TensorStore does the same. So rows that were never written after the cut have numbers of the
# abandoned run up to the border of the chunk, and the fill value after it. With NaN as fill value, a mask for missing steps misses them. Nothing is
# raised or logged. HDF5 fills such elements. Removed data, for example of a person, also remains in the store. Assign the fill value to the rows
# before the cut.
#
# Guess: elements outside of the new shape are gone, and new ones have the fill value.
# Seen, 2026-12-01: an array of 10 rows with chunks of 4, cut to 5 rows and resized to 10, has the old rows 5 to 7, and NaN in rows 8 and 9. This holds
# for both Zarr formats, for shards, in memory and on disk, and for TensorStore. h5py has NaN in rows 5 to 9.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'zarr==3.1.6' 'tensorstore==0.1.86' 'h5py==3.16.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys
import warnings

import h5py
import numpy as np
import tensorstore
import zarr

warnings.simplefilter("error")
print(*(f"{name} {importlib.metadata.version(name)}" for name in ("zarr", "tensorstore", "h5py", "numpy")))
OLD = np.arange(10, dtype=np.float32)
FOLDER = sys.argv[1]


def check(name, found, kept):
    """Rows below `kept` have the old numbers, the others NaN."""
    print(f"{name}: {found.tolist()}")
    assert np.array_equal(found[:kept], OLD[:kept]) and np.isnan(found[kept:]).all()


for zarr_format in (2, 3):
    for place in ("memory", "disk"):
        store = {} if place == "memory" else f"{FOLDER}/v{zarr_format}"
        array = zarr.create_array(store, shape=10, chunks=4, dtype=np.float32, fill_value=np.nan, zarr_format=zarr_format)
        array[:] = OLD
        array.resize((5,))
        assert np.array_equal(array[:], OLD[:5])
        array = zarr.open_array(store)
        array.resize((10,))
        check(f"zarr, format {zarr_format}, {place}", array[:], 8)

array = zarr.create_array({}, shape=10, chunks=(2,), shards=(8,), dtype=np.float32, fill_value=np.nan)
array[:] = OLD
array.resize((5,))
array.resize((10,))
check("zarr, chunks of 2 in shards of 8", array[:], 8)

array = zarr.create_array({}, shape=10, chunks=4, dtype=np.float32, fill_value=np.nan)
array[:] = OLD
array[5:] = np.nan
array.resize((5,))
array.resize((10,))
check("zarr, NaN assigned before the cut", array[:], 5)

metadata = {"shape": [10], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "data_type": "float32", "fill_value": "NaN"}
array = tensorstore.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata, "create": True}).result()
array[:] = OLD
for length in (5, 10):
    array = array.resize(exclusive_max=[length]).result()
check("tensorstore", array[:].read().result(), 8)

with h5py.File(FOLDER + "/data.h5", "w") as file:
    array = file.create_dataset("x", data=OLD, chunks=(4,), maxshape=(None,), fillvalue=np.nan)
    array.resize((5,))
    array.resize((10,))
    check("h5py", array[:], 5)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
