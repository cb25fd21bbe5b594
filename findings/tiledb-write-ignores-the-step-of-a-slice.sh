#!/bin/sh
# tiledb 0.36.1 with numpy 2.4.6: `array[::2] = 0.0` overwrites every number, and `array[5::-1]` reads the other end of the array.
#
# A dense array of TileDB is indexed like a NumPy array, and `array[::2]` reads every second number. An assignment ignores the step and writes the
# whole range between start and stop. So `array[::2] = 0.0` also deletes the numbers between, and `array[::-1] = values` does not reverse the values.
# If the values are an array for every second place, the shape does not fit and an error is raised, so a test with such an array finds no silent case.
# A read selects the range as if the step were positive, and then applies the step to this range. That is right for positive steps and for `[::-1]`.
# With a negative step and a start or a stop, the read returns numbers from the other side: `array[5::-1]` should return the first six in reverse
# order, and begins with the last number of the array. Nothing is raised or logged. Sparse arrays refuse steps. Read and write ranges without a step,
# and apply the step to the NumPy array in memory.
#
# Guess: the step is used as in NumPy, or refused.
# Seen, 2026-12-01: for the numbers 0 to 9, `[::2] = -1.0` leaves only -1, and `[::-1] = values` writes the values in their order. `[5::-1]` is [9, 8,
# 7, 6, 5] instead of [5, 4, 3, 2, 1, 0], `[:2:-1]` is [1, 0] instead of [9, ..., 3], and `[-4::-1]` is [9, 8, 7, 6] instead of [6, ..., 0]. `[::2]`,
# `[1:7:3]` and `[::-1]` are read correctly.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'tiledb==0.36.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import itertools
import sys
import warnings

import numpy as np
import tiledb

warnings.simplefilter("error")
print("tiledb", tiledb.__version__, "numpy", np.__version__)
ten = np.arange(10.0)
names = itertools.count()


def create():
    path = f"{sys.argv[1]}/{next(names)}"
    tiledb.from_numpy(path, ten).close()
    return path


def written(index, values):
    """The numbers after an assignment, and those that NumPy has."""
    path, expected = create(), ten.copy()
    with tiledb.open(path, "w") as array:
        array[index] = values
    expected[index] = values
    with tiledb.open(path) as array:
        found = array[:]
    print(f"{index} = {values}: {found.tolist()}, NumPy {expected.tolist()}")
    return found.tolist(), expected.tolist()


found, expected = written(np.s_[2:4], -1.0)
assert found == expected
found, expected = written(np.s_[::2], -1.0)
assert found == [-1.0] * 10 and expected[1::2] == [1, 3, 5, 7, 9]
found, expected = written(np.s_[::-1], ten)
assert found == expected[::-1] == ten.tolist()

with tiledb.open(create()) as array:
    for index, wrong in (
        (np.s_[::2], None),
        (np.s_[1:7:3], None),
        (np.s_[::-1], None),
        (np.s_[::-2], None),
        (np.s_[5::-1], [9, 8, 7, 6, 5]),
        (np.s_[:2:-1], [1, 0]),
        (np.s_[-4::-1], [9, 8, 7, 6]),
    ):
        found, expected = array[index].tolist(), ten[index].tolist()
        print(f"{index}: {found}, NumPy {expected}")
        assert found == (expected if wrong is None else wrong) and (found == expected) == (wrong is None)

square = np.arange(9.0).reshape(3, 3)
tiledb.from_numpy(f"{sys.argv[1]}/square", square).close()
with tiledb.open(f"{sys.argv[1]}/square") as array:
    found, expected = array[:, 1::-1], square[:, 1::-1]
print(f"two columns of a square, reversed: {found.tolist()}, NumPy {expected.tolist()}")
assert found.shape == expected.shape and found.tolist() == [[2, 1], [5, 4], [8, 7]] and expected.tolist() == [[1, 0], [4, 3], [7, 6]]
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
