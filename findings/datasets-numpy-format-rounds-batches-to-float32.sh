#!/bin/sh
# datasets 5.2.0 with numpy 2.4.6: with the format "numpy", a batch has other numbers than its rows: float64 is rounded to float32, and so are ids with a gap.
#
# `with_format("numpy")` makes each column of a batch an array. If the column is float64, the array is float32. A single row has
# the float64 number. A column of integers with a missing entry becomes float32 with NaN, so an id of more than 24 bits is another id. `map` with `batched=True`
# gets the rounded numbers, and stores a column of them as float32. `filter` always gets them, also without `batched=True`. There is no warning. Times in seconds
# since 1970 are rounded to 128 seconds. Use `with_format("numpy", dtype=numpy.float64)` for floats, and "arrow" for ids.
#
# Guess: a batch has the numbers of its rows, in the types of the features.
# Seen, 2026-11-30: the time 1700000000.123456 is read as it was in a row, and as 1700000000.0 in a batch. 1700000100.0 is 1700000128.0 in a batch. The ids 2^60 + 1 and
# none are read as 2^60 and NaN. The format "torch" rounds the time also in a row.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'datasets==5.2.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import datasets
import numpy as np

datasets.disable_progress_bars()
print("datasets", datasets.__version__, "numpy", np.__version__)
times, ids = [1700000000.123456, 1700000100.0], [2**60 + 1, None]
data = datasets.Dataset.from_dict({"time": times, "id": ids})
print(data.features)
arrays = data.with_format("numpy")
batch, row = arrays[:], arrays[0]
print("row", row, "batch", batch)
assert row["time"] == times[0] and row["id"] == ids[0]
assert batch["time"].dtype == batch["id"].dtype == np.float32
assert batch["time"].tolist() == [1700000000.0, 1700000128.0] and batch["id"][0] == 2**60 and np.isnan(batch["id"][1])
copied = arrays.map(lambda some: {"copy": some["time"]}, batched=True).with_format(None)
print("a copy by map, batched:", copied[:]["copy"], copied.features["copy"])
assert copied[:]["copy"] == [1700000000.0, 1700000128.0] and copied[:]["time"] == times
copied = arrays.map(lambda one: {"copy": one["time"]}).with_format(None)
print("a copy by map, row by row:", copied[:]["copy"], copied.features["copy"])
assert copied[:]["copy"] == times
counts = [len(arrays.filter(lambda some: some["time"] < times[1] + 10, batched=batched)) for batched in (True, False)]
print("rows before", times[1] + 10, "by filter, batched:", counts[0], "row by row:", counts[1])
assert counts == [1, 1] and sum(time < times[1] + 10 for time in data[:]["time"]) == 2
wide = data.with_format("numpy", dtype=np.float64)[:]["time"]
assert wide.tolist() == times and data.with_format("arrow")[:]["id"].to_pylist() == ids
PY
HF_HOME="$dir/cache" HF_HUB_OFFLINE=1 "$dir/venv/bin/python" "$dir/try.py"
