#!/bin/sh
# numba 0.68.1 with numpy 2.4.6: in a compiled function, the mean of 10 million float32 numbers of 0.1 is 0.109, and of 33 million ones 0.5.
#
# NumPy adds float32 numbers in pairs, so its error hardly grows with their count. numba compiles `sum`, `mean`, `std`, `var` and `cumsum` to a loop that adds one number
# after the other in float32. From 2^24 ones on, the sum stops growing. The same function without `@njit` is right, and a test with a small array passes.
# There is no warning. `numpy.nanmean` is right in a compiled function, since it adds in float64. Use `x.sum(dtype=numpy.float64)`, or convert the array first.
#
# Guess: `numpy.mean` has the precision of NumPy in a compiled function.
# Seen, 2026-11-30: the mean of 10^7 times 0.1 is 0.1088, and 0.1 in NumPy. The mean of 2^25 ones is 0.5 with a standard deviation of 0.5. `nanmean` is 1.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numba==0.68.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import numba
import numpy as np


def statistics(numbers):
    return np.mean(numbers), np.std(numbers), np.sum(numbers)


compiled = numba.njit(statistics)
nanmean = numba.njit(lambda numbers: np.nanmean(numbers))
wide = numba.njit(lambda numbers: numbers.sum(dtype=np.float64) / numbers.size)
print("numba", numba.__version__, "numpy", np.__version__)
means = []
for value, count in ((0.1, 1000), (0.1, 10**7), (1.0, 1 << 25)):
    numbers = np.full(count, value, dtype=np.float32)
    print(f"{count} times {value}: mean, std and sum", [float(one) for one in compiled(numbers)], "numpy", [float(one) for one in statistics(numbers)])
    means.append(float(compiled(numbers)[0]))
    assert abs(statistics(numbers)[0] - value) < 1e-6 and abs(wide(numbers) - value) < 1e-6 and abs(nanmean(numbers) - value) < 1e-6
assert abs(means[0] - 0.1) < 1e-5
assert 0.105 < means[1] < 0.112
assert means[2] == 0.5 and compiled(np.ones(1 << 25, dtype=np.float32))[1] == 0.5
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
