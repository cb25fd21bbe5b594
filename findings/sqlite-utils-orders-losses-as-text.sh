#!/bin/sh
# sqlite-utils 4.2.1 and dataset 2.0.0: if the first loss is None, the column becomes text, and 9e-05 is the largest of all losses.
#
# Both libraries create a table in SQLite from the first rows that are inserted. A column whose first value is None gets the type TEXT. This is usual
# for a table of metrics: the first step has no validation loss yet. SQLite then converts each later float to text, so the column contains '0.9' and
# '9.0e-05'. Sorting and comparing go by characters: `min` misses the best loss, `max` and `order by` are wrong, and a condition such as `loss < 0.5`
# has the wrong rows. The values return as `str`. Nothing is raised or logged. A table whose first rows are inserted in one batch is right if the batch
# contains a float, so a script that collects rows before it inserts them does not show it. Create the column with a type, as in
# `table.create({"step": int, "loss": float})` or `create_column("loss", db.types.float)`, before the first row.
#
# Guess: a column without a known type keeps the numbers that are inserted.
# Seen, 2026-12-01: of 2.5, 0.9, 9e-05, 10.5 and 0.02, the smallest is 0.02 and the largest 9e-05. `loss < 0.5` finds only 0.02. With a type, or if
# the first row has a number, the order is right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'sqlite-utils==4.2.1' 'dataset==2.0.0'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sqlite3

import dataset
import sqlite_utils

print("SQLite", sqlite3.sqlite_version, *(f"{name} {importlib.metadata.version(name)}" for name in ("sqlite-utils", "dataset")))
LOSSES = [2.5, 0.9, 9e-05, 10.5, 0.02]


def utils(first, typed):
    table = sqlite_utils.Database(memory=True)["metrics"]
    if typed:
        table.create({"step": int, "loss": float})
    for step, loss in enumerate([first, *LOSSES]):
        table.insert({"step": step, "loss": loss})
    smallest, largest = next(table.db.query("select min(loss) s, max(loss) l from metrics")).values()
    ordered = [row["loss"] for row in table.rows_where("loss is not null", order_by="loss")]
    return ordered, [row["loss"] for row in table.rows_where("loss < 0.5")], smallest, largest


def simple(first, typed):
    db = dataset.connect("sqlite:///:memory:")
    table = db["metrics"]
    if typed:
        table.create_column("loss", db.types.float)
    for step, loss in enumerate([first, *LOSSES]):
        table.insert({"step": step, "loss": loss})
    smallest, largest = next(iter(db.query("select min(loss) as s, max(loss) as l from metrics"))).values()
    ordered = [row["loss"] for row in table.find(order_by="loss") if row["loss"] is not None]
    return ordered, [row["loss"] for row in table.find(loss={"<": 0.5})], smallest, largest


for name, library in (("sqlite-utils", utils), ("dataset", simple)):
    for first, typed in ((None, False), (None, True), (3.5, False)):
        ordered, low, smallest, largest = library(first, typed)
        print(f"{name}, first value {first}, typed {typed}: order {ordered}, below 0.5 {low}, smallest {smallest!r}, largest {largest!r}")
        if first is None and not typed:
            assert [float(loss) for loss in ordered] == [0.02, 0.9, 10.5, 2.5, 9e-05] and all(isinstance(loss, str) for loss in ordered)
            assert [float(loss) for loss in low] == [0.02] and (float(smallest), float(largest)) == (0.02, 9e-05)
        else:
            assert ordered == sorted(LOSSES + [first] * (first is not None)) and low == [9e-05, 0.02] and (smallest, largest) == (9e-05, 10.5)

table = sqlite_utils.Database(memory=True)["metrics"]
table.insert_all([{"step": 0, "loss": None}, {"step": 1, "loss": 2.5}])
print(f"sqlite-utils, two rows in one batch: {table.columns_dict}")
assert table.columns_dict["loss"] is float
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
