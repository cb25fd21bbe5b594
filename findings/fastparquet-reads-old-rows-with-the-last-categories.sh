#!/bin/sh
# fastparquet 2026.9.0 with pandas 3.1.1: after an append or in a folder, rows of a categorical column get the labels of the last part: x becomes y.
#
# A Parquet file stores one dictionary of labels for each row group, and codes for the rows. `to_pandas` joins the codes of all row groups, and labels
# them all with the last dictionary. So if the parts have different categories, or the same ones in another order, the labels of all earlier rows are
# wrong. This happens with `append=True`, and in a folder of several files, also if pyarrow wrote them. There is no error or warning. The file is
# right: pyarrow reads the right labels, and so does fastparquet for one row group, or with `categories=[]`, which reads the column as text.
#
# Guess: each row keeps its label, as with pyarrow, or parts with different categories are refused.
# Seen, 2026-11-30: x, y and then y, z are read as y, z, y, z. Of a, b and then b, a remains b, a, b, a. A folder of two files gives the same. pyarrow
# reads x, y, y, z and a, b, b, a.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'fastparquet==2026.9.0' 'pandas==3.1.1' 'numpy==2.4.6' 'pyarrow==26.0.1'
cat > "$dir/try.py" <<'PY'
import os
import sys

import fastparquet
import pandas as pd

folder = sys.argv[1]


def part(categories):
    """A row for each category, in their order."""
    return pd.DataFrame({"label": pd.Categorical(categories, categories=categories)})


def labels(path):
    """Labels as fastparquet reads them, and as pyarrow does."""
    readers = fastparquet.ParquetFile(path).to_pandas(), pd.read_parquet(path, engine="pyarrow")
    return tuple("".join(rows.label.astype(str)) for rows in readers)


def write(path, engine, categories, **options):
    if engine == "pyarrow":
        part(categories).to_parquet(path, engine=engine)
    else:
        fastparquet.write(path, part(categories), **options)


print("fastparquet", fastparquet.__version__, "pandas", pd.__version__)
for first, second, wrong in (("xy", "yz", "yzyz"), ("ab", "ba", "baba")):
    path = f"{folder}/{first}.parquet"
    write(path, "fastparquet", list(first))
    write(path, "fastparquet", list(second), append=True)
    found = labels(path)
    print(f"{first}, then {second} appended: fastparquet reads {found[0]}, pyarrow {found[1]}")
    assert found == (wrong, first + second)
    handle = fastparquet.ParquetFile(path)
    assert "".join(handle.to_pandas(categories=[]).label) == first + second
    assert ["".join(rows.label.astype(str)) for rows in handle.iter_row_groups()] == [first, second]
    for writer in ("fastparquet", "pyarrow"):
        parts = f"{folder}/{first}-{writer}"
        os.mkdir(parts)
        write(f"{parts}/0.parquet", writer, list(first))
        write(f"{parts}/1.parquet", writer, list(second))
        found = labels(parts)
        print(f"{first} and {second} in two files of {writer}: fastparquet reads {found[0]}, pyarrow {found[1]}")
        assert found == (wrong, first + second)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
