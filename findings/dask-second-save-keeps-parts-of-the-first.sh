#!/bin/sh
# dask 2026.8.0 with pandas 2.3.3: saving a shorter table over a longer one leaves parts of the old one, and pandas doubles the rows of a partitioned one.
#
# `dask.dataframe.to_parquet` writes one file per partition, `part.0.parquet` and so on, and replaces files of the same name. `append` is False, and
# `overwrite` also is False by default. If the new table has fewer partitions, the other old files stay in the folder, and the table that is read has
# rows of both. pandas with `partition_cols` and pyarrow gives new names to the files of each call, so a second save of the same table doubles its
# rows; with fastparquet as engine it replaces them. There is no error or warning in any case. Pass `overwrite=True` to dask, and
# `existing_data_behavior="delete_matching"` to pandas, or write to a new folder.
#
# Guess: a save over an older one replaces it, as `DataFrame.to_parquet` does with a file.
# Seen, 2026-11-30: 40 rows in 4 partitions, then 4 rows in 2: 24 rows are read, of which 20 are old. With overwrite=True there are 4. pandas saves 3
# rows twice: 6 are read with pyarrow, 3 with fastparquet and with "delete_matching".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'dask[dataframe]==2026.8.0' 'pandas==2.3.3' 'pyarrow==26.0.1' 'fastparquet==2026.9.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import dask
import dask.dataframe
import fastparquet
import numpy as np
import pandas as pd
import pyarrow

warnings.simplefilter("error")
warnings.simplefilter("ignore", ResourceWarning)


def save_with_dask(path, numbers, partitions, **options):
    table = dask.dataframe.from_pandas(pd.DataFrame({"loss": numbers}), npartitions=partitions)
    table.to_parquet(path, **options)


print("dask", dask.__version__, "pandas", pd.__version__, "pyarrow", pyarrow.__version__, "fastparquet", fastparquet.__version__)
for options, rows, old in (({}, 24, 20), ({"overwrite": True}, 4, 0)):
    path = f"{sys.argv[1]}/dask{rows}"
    save_with_dask(path, np.arange(40.0), 4)
    save_with_dask(path, np.arange(4.0) + 100, 2, **options)
    found = dask.dataframe.read_parquet(path).compute()["loss"]
    print(f"dask {options}: {len(found)} rows, {int((found < 100).sum())} of the first table, lowest loss {found.min()}")
    assert (len(found), int((found < 100).sum())) == (rows, old)

table = pd.DataFrame({"run": ["a", "a", "b"], "loss": [1.0, 2.0, 3.0]})
for engine, options, rows in (("pyarrow", {}, 6), ("fastparquet", {}, 3), ("pyarrow", {"existing_data_behavior": "delete_matching"}, 3)):
    path = f"{sys.argv[1]}/{engine}{len(options)}"
    for _ in range(2):
        table.to_parquet(path, engine=engine, partition_cols=["run"], **options)
    found = len(pd.read_parquet(path, engine=engine))
    print(f"pandas with {engine} {options}: {found} rows of {len(table)}")
    assert found == rows
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
