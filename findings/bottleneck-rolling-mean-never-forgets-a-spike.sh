#!/bin/sh
# bottleneck 1.6.0 with xarray 2026.9.0 and numpy 2.4.6: in xarray, one infinity makes all later rolling means NaN, if bottleneck is installed.
#
# `rolling(...).mean()` and `sum()` of xarray call `move_mean` and `move_sum` of bottleneck, if it is installed. They add each number that enters the window to a sum, and
# subtract the number that leaves it. An infinity minus an infinity is NaN, and the sum remains NaN up to the end. One large float32 number rounds
# the sum, and the lost digits do not return when the number has left the window. So a smoothed loss with one spike is 0.0 from then on, without a warning.
# Without bottleneck, all windows after the spike are right. Call `xr.set_options(use_bottleneck=False)`, or use pandas.
#
# Guess: a rolling mean depends only on the numbers in its window.
# Seen, 2026-11-30: with a window of 2, [1, infinity, 1, 1, 1] has the means NaN, infinity, infinity, NaN, NaN, and 1.0 at the end without bottleneck. In
# float32, [1e9, 1, 1, 1] has NaN, 5e8, 0.0, 0.0, and 1.0 at the end without bottleneck.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'bottleneck==1.6.0' 'xarray==2026.9.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import bottleneck
import numpy as np
import xarray as xr


def means(numbers, use_bottleneck):
    with xr.set_options(use_bottleneck=use_bottleneck):
        found = xr.DataArray(numbers, dims="step").rolling(step=2).mean().values
    print(numbers.dtype.name, numbers.tolist(), f"{use_bottleneck=}", found.tolist())
    return found


print("bottleneck", bottleneck.__version__, "xarray", xr.__version__)
nan, infinity = np.nan, np.inf
diverged = np.array([1, infinity, 1, 1, 1])
spike = np.array([1e9, 1, 1, 1], dtype=np.float32)
assert np.array_equal(means(diverged, True), [nan, infinity, infinity, nan, nan], equal_nan=True)
assert np.array_equal(means(diverged, False), [nan, infinity, infinity, 1, 1], equal_nan=True)
assert np.array_equal(means(spike, True), [nan, 5e8, 0, 0], equal_nan=True)
assert np.array_equal(means(spike, False), [nan, 5e8, 1, 1], equal_nan=True)
assert np.array_equal(bottleneck.move_sum(spike, 2), [nan, 1e9, 0, 0], equal_nan=True)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
