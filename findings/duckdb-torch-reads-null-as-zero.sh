#!/bin/sh
# duckdb 2.0.1 with torch 2.13.0: `.torch()` reads NULL as 0, in columns of floats, integers and booleans.
#
# `.torch()` returns the result of a query as a dict of tensors. `.df()` reads a NULL as NaN or NA, and `.fetchnumpy()` as a masked element of a masked
# array. `.torch()` makes tensors from the data of the masked arrays and drops the masks. The data have 0 or False at these places. A missing feature
# or target becomes a plausible number. Nothing is raised or logged. A left join without a partner, `lag` in the first row, a window without rows,
# `try_cast` of a bad text and a missing field of a CSV or Parquet file all give NULL. Real NaN is kept. `to_torch` of Polars reads a null as NaN.
# Write `coalesce(x, 'nan'::float)` in the query, filter with `x is not null`, or use `.fetchnumpy()` and its masks.
#
# Guess: NULL is NaN in float columns, and an error in the others.
# Seen, 2026-12-01: of 6000 rows, the 2000 with NULL are 0 in REAL, DOUBLE, INTEGER, BIGINT and DECIMAL, and False in BOOLEAN, so a mean without missing
# rows of 3000.0 becomes 2000.0. The same holds for the join, the window and the cast. Polars 2.1.0 has NaN.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'duckdb==2.0.1' 'torch==2.13.0' 'polars==2.1.0' 'numpy==2.4.6' 'pandas==3.0.1'
cat > "$dir/try.py" <<'PY'
import warnings

import duckdb
import numpy as np
import polars
import torch

warnings.simplefilter("error")
print("duckdb", duckdb.__version__, "torch", torch.__version__, "polars", polars.__version__, "numpy", np.__version__)
db = duckdb.connect()
for kind in ("REAL", "DOUBLE", "INTEGER", "BIGINT", "DECIMAL(10, 2)", "BOOLEAN"):
    query = f"select case when i % 3 > 0 then i end::{kind} x from range(6000) t(i)"
    found, masked = db.sql(query).torch()["x"], db.sql(query).fetchnumpy()["x"]
    missing = torch.arange(6000) % 3 == 0
    print(f"{kind}: {found[:6].tolist()}, distinct values of NULL {found[missing].unique().tolist()}, with fetchnumpy {masked[:6]}")
    assert np.array_equal(masked.mask, missing.numpy()) and db.sql(query).df()["x"].isna().sum() == 2000
    assert not found[missing].any() and found[~missing].all()
    assert torch.equal(found, db.execute(query).torch()["x"])
    if kind == "REAL":
        print(f"  mean {masked.mean(dtype=float)} becomes {found.double().mean()}")
        assert masked.mean(dtype=float) == 3000.0 and found.double().mean() == 2000.0

queries = {
    "left join": "select b.x from range(3) a(i) left join (values (0, 5.5::real), (2, 7.5)) b(i, x) on a.i = b.i order by a.i",
    "window": "select lag(i::real) over (order by i) x from range(3) t(i)",
    "cast": "select try_cast(text as real) x from (values ('1.5'), ('unknown'), ('2.5')) t(text)",
    "real NaN": "select x::real x from (values ('1'), ('nan'), ('2')) t(x)",
}
expected = {"left join": [5.5, 0.0, 7.5], "window": [0.0, 0.0, 1.0], "cast": [1.5, 0.0, 2.5]}
for name, query in queries.items():
    found, frame = db.sql(query).torch()["x"], db.sql(query).df()["x"]
    print(f"{name}: torch {found.tolist()}, df {frame.tolist()}")
    assert frame.isna().sum() == 1
    if name == "real NaN":
        assert found[1].isnan()
    else:
        assert found.tolist() == expected[name]
tensor = polars.Series("x", [1.5, None, 2.5], dtype=polars.Float32).to_torch()
print(f"polars: {tensor.tolist()}")
assert tensor[1].isnan()
PY
"$dir/venv/bin/python" "$dir/try.py"
