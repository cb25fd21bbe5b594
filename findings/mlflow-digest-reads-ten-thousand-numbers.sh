#!/bin/sh
# mlflow-skinny 3.17.2: two data sets that differ after the first 10,000 numbers or rows have the same digest.
#
# `mlflow.log_input` stores a digest of the data set of a run, which tells one data set from another. The digest is a hash of the first 10,000 numbers
# of a NumPy array, or of the first 10,000 rows of a table, with the number of rows and the names of columns. An image data set of 32 by 32 pixels in
# 3 colors is covered up to a part of its fourth image. So corrected labels or a repaired shard leave the digest as it was, and both runs are logged
# with the same digest. There is no warning. Pass `digest=` with a hash of all bytes.
#
# Guess: a digest covers all data, as that of a file does.
# Seen, 2026-11-30: zeros of shape (20000, 2), with a one in row 15,000, and of shape (100, 3, 32, 32) with another image 4: equal digests. So do
# tables of 20,000 rows with a changed row 15,000. With a one in row 0, or one row more, the digest differs. Other targets after row 10,000 do not
# change it either.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mlflow-skinny==3.17.2' 'numpy==2.4.6' 'pandas==2.3.3'
cat > "$dir/try.py" <<'PY'
import numpy as np
import pandas as pd
import mlflow
from mlflow.data.numpy_dataset import from_numpy
from mlflow.data.pandas_dataset import from_pandas


def digests(name, data, make, changes):
    """Digest of data, and of a copy with each change."""
    found = [make(data).digest]
    for place in changes:
        other = data.copy()
        if isinstance(other, pd.DataFrame):
            other.loc[place, "loss"] = 1.0
        else:
            other[place] = 1.0
        assert not np.array_equal(other, data)
        found.append(make(other).digest)
    print(f"{name}: {found[0]}, changed at {changes}: {found[1:]}")
    return found


print("mlflow", mlflow.__version__, "numpy", np.__version__, "pandas", pd.__version__)
same, last, first = digests("array", np.zeros((20_000, 2)), from_numpy, (15_000, 0))
assert same == last != first
same, last, first = digests("images", np.zeros((100, 3, 32, 32)), from_numpy, (4, 0))
assert same == last != first
table = pd.DataFrame({"loss": np.zeros(20_000)})
same, last, first = digests("table", table, from_pandas, (15_000, 0))
assert same == last != first
longer = pd.concat([table, table[:1]], ignore_index=True)
assert from_pandas(longer).digest != same
assert from_numpy(np.zeros((20_000, 2)), targets=np.zeros(20_000)).digest == from_numpy(np.zeros((20_000, 2)), targets=np.arange(20_000) > 15_000).digest
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
