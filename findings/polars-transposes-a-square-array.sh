#!/bin/sh
# polars 2.1.0 with numpy 2.4.6: a square array with column names becomes a frame or its transpose, depending on the memory order of the array.
#
# `DataFrame(array, schema=names)` has to guess whether the names are for the rows or the columns of the array. For a square array both fit, and polars then looks
# at the memory order. An array in Fortran order is transposed. So two arrays that NumPy calls equal give different frames, without a warning. The documentation says that
# columns are used if the shape does not decide. A batch in Fortran order that has as many rows as features is transposed,
# and the next batch with one more row is not. Without `schema` the memory order does not matter. Pass `orient="row"`.
#
# Guess: equal arrays give equal frames.
# Seen, 2026-11-30: [[1, 2], [3, 4]] has the rows (1, 2) and (3, 4), and in Fortran order (1, 3) and (2, 4). With three rows, without `schema`, and with
# `orient="row"` the order does not matter.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'polars==2.1.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import warnings

import numpy as np
import polars as pl

warnings.simplefilter("error")
print("polars", pl.__version__, "numpy", np.__version__)


def rows(array, **options):
    """The rows of the frame of an array in C order, and in Fortran order."""
    both = np.ascontiguousarray(array), np.asfortranarray(array)
    assert np.array_equal(*both)
    frames = [pl.DataFrame(one, **options).rows() for one in both]
    assert frames == [pl.from_numpy(one, **options).rows() for one in both]
    print(array.tolist(), options, "C order:", frames[0], "Fortran order:", frames[1])
    return frames


square, names = np.array([[1, 2], [3, 4]]), ["loss", "score"]
assert rows(square, schema=names) == [[(1, 2), (3, 4)], [(1, 3), (2, 4)]]
for array, options in ((square, {}), (square, {"schema": names, "orient": "row"}), (np.array([[1, 2], [3, 4], [5, 6]]), {"schema": names})):
    found = rows(array, **options)
    assert found[0] == found[1] == [tuple(row) for row in array.tolist()]
PY
"$dir/venv/bin/python" "$dir/try.py"
