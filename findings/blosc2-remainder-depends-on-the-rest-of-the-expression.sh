#!/bin/sh
# blosc2 4.14.1 with numpy 2.4.6: `c % 3` of -4 is -1, or 2 if the same expression also has `//`, or if only a part of the result is computed.
#
# blosc2 has compressed arrays with the operators of NumPy, which are evaluated later. It has several ways to evaluate an expression, and chooses one by
# the operators in the expression and by the wanted part of the result. One way computes the remainder of C, with the sign of the dividend, and the
# other one that of Python, with the sign of the divisor. So the value of `c % 3` depends on the rest of the expression: `c % 3` gives -1, and
# `(c // 3) * 0 + c % 3` gives 2. For one expression, `[:6]` gives 2, and `compute()[:6]` gives -1. The documentation of `blosc2.remainder` says that it
# is equivalent to the operator `%` of Python. This affects ring buffers and positions that wrap around: an array of positions minus an offset, modulo a
# length. A test that looks at a few elements of the result, or only has numbers from 0, passes. `c - (c // n) * n` has always the sign of `n`.
#
# Guess: the remainder of one array is the same in each expression, and `[:6]` gives the same values as `compute()[:6]`.
# Seen, 2026-12-01: for -4 to 4 modulo 3, NumPy gives 2 0 1 2 0 1 2 0 1. `c % 3`, `c % 3 + 0` and `blosc2.remainder(c, 3)` give -1 0 -2 -1 0 1 2 0 1, and
# `(c // 3) * 0 + c % 3` gives the numbers of NumPy, with integers and with floats. `c % 3 == 2` is true for 2 only, and
# `where(c % 3 == 2, c, 100)` selects -4, -1 and 2. Of an array with a million numbers, `(c % 3)[:6]` differs from `(c % 3).compute()[:6]`.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'blosc2==4.14.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import blosc2
import numpy as np

print("blosc2", blosc2.__version__, "numpy", np.__version__)
PYTHON = [2, 0, 1, 2, 0, 1, 2, 0, 1]
C = [-1, 0, -2, -1, 0, 1, 2, 0, 1]

for dtype in (np.int64, np.int32, np.float64):
    a = np.arange(-4, 5, dtype=dtype)
    c = blosc2.asarray(a)
    results = {
        "numpy a % 3": (a % 3, PYTHON),
        "c % 3": (c % 3, C),
        "c % 3 + 0": (c % 3 + 0, C),
        "blosc2.remainder(c, 3)": (blosc2.remainder(c, 3), C),
        "(c // 3) * 0 + c % 3": ((c // 3) * 0 + c % 3, PYTHON),
        "c - (c // 3) * 3": (c - (c // 3) * 3, PYTHON),
    }
    for name, (lazy, wanted) in results.items():
        found = np.asarray(lazy[:]).astype(int).tolist()
        print(f"{np.dtype(dtype).name:8}{name:24}{found}")
        assert found == wanted, name

c = blosc2.asarray(np.arange(-4, 5))
mask, chosen = (c % 3 == 2)[:].tolist(), blosc2.where(c % 3 == 2, c, 100)[:].tolist()
print("c % 3 == 2", mask, "where(c % 3 == 2, c, 100)", chosen)
assert mask == [i == 6 for i in range(9)] and chosen == [-4, 100, 100, -1, 100, 100, 2, 100, 100]

many = blosc2.asarray(np.arange(-4, 1_000_000)) % 3
part, whole = np.asarray(many[:6]).tolist(), np.asarray(many.compute()[:6]).tolist()
print("a million numbers: [:6]", part, "compute()[:6]", whole)
assert part == PYTHON[:6] and whole == C[:6]
assert "equivalent to the Python modulus operator" in blosc2.remainder.__doc__
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
