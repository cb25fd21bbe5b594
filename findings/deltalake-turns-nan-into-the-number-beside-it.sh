#!/bin/sh
# deltalake 1.6.6 with pyarrow 26.0.1: an update or a delete of other rows replaces NaN by the number beside it, if all numbers of its file are equal.
#
# A Delta table notes the lowest and the highest number of each column for each data file, and leaves NaN out. If both are equal and no entry is null, deltalake takes the
# column for a constant in each query with a condition on it, and does not read it. So a file of [1, NaN] is read as [1, 1], for example where `loss is not null`, or
# where `loss < 5 and not isnan(loss)`. `update`, `delete` and `merge` write the rows that they keep in this way, and the NaN is lost. In all other files, NaN is
# greater than every number, or its file is skipped. There is no error or warning. A scan by pyarrow reads NaN. Store null for a missing loss.
#
# Guess: NaN is stored and read as NaN. Whether `loss > 5` selects it is not certain.
# Seen, 2026-11-30: of a file of [1, NaN], `loss < 5`, `loss = 1` and `loss is not null` select 1 and 1. After an update of another column where `loss < 5`,
# and after a delete where `loss > 5 or step = 0`, the NaN is 1.0 in the table. In a file of [1, NaN, 2], it is NaN after both.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'deltalake==1.6.6' 'pyarrow==26.0.1'
cat > "$dir/try.py" <<'PY'
import sys
import tempfile

import deltalake
import pyarrow as pa

nan = float("nan")
print("deltalake", deltalake.__version__, "pyarrow", pa.__version__)


def table(*losses):
    path = tempfile.mkdtemp(dir=sys.argv[1])
    deltalake.write_deltalake(path, pa.table({"loss": losses, "step": range(len(losses)), "seen": [0] * len(losses)}))
    return deltalake.DeltaTable(path)


def stored(one):
    return str(deltalake.DeltaTable(one.table_uri).to_pyarrow_table().sort_by("step")["loss"].to_pylist())


def selected(one, condition):
    rows = deltalake.QueryBuilder().register("runs", one).execute(f"select loss from runs {condition} order by step").read_all()
    found = str(pa.table(rows)["loss"].to_pylist())
    print(f"{stored(one)} {condition}: {found}")
    return found


def after(act, *losses):
    one = table(*losses)
    {"update": update, "delete": delete, "merge": merge}[act](one)
    print(f"{list(losses)} after {act}: {stored(one)}")
    return stored(one)


def update(one):
    one.update(updates={"seen": "1"}, predicate="loss < 5")


def delete(one):
    one.delete("loss > 5 or step = 0")


def merge(one):
    source = pa.table({"step": [0], "loss": [0.5], "seen": [1]})
    merger = one.merge(source, "old.step = new.step and old.loss < 5", source_alias="new", target_alias="old")
    merger.when_matched_update_all().execute()


one = table(1.0, nan)
assert selected(one, "") == "[1.0, nan]"
for condition in ("loss < 5", "loss = 1", "loss is not null", "loss < 5 and not isnan(loss)"):
    assert selected(one, f"where {condition}") == "[1.0, 1.0]"
assert selected(table(1.0, nan, 2.0), "where loss is not null") == "[1.0, nan, 2.0]"

assert after("update", 1.0, nan) == "[1.0, 1.0]"
assert after("delete", 1.0, nan) == "[1.0]"
assert after("merge", 1.0, nan, 1.0) == "[0.5, 1.0, 1.0]"
assert after("update", 1.0, nan, 2.0) == "[1.0, nan, 2.0]"
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
