#!/bin/sh
# torch 2.13.0 with ml_dtypes 0.6.0: torch turns infinity into 448 in float8_e4m3fn, and drops the sign in float8_e8m0fnu. jax writes NaN.
#
# float8_e4m3fn has a NaN, but no infinity. torch saturates each value above 464, and also infinity, to 448, so that a weight that diverged is an ordinary
# number after the cast, and `isfinite` no longer finds it. ml_dtypes, which numpy and jax use, returns NaN for the same values. In the three
# other eight-bit types with a sign, float8_e5m2, e4m3fnuz and e5m2fnuz, torch and ml_dtypes agree and keep an infinity or a NaN. float8_e8m0fnu,
# the type of MX scales, has no sign and no zero: torch casts -2 to 2 and 0 to 2**-127, ml_dtypes both to NaN. So a checkpoint that torch wrote
# in float8 differs from one that jax wrote from the same float32 weights. Check `isfinite` before the cast.
#
# Guess: infinity becomes NaN in float8_e4m3fn, and a negative scale NaN, as the value that means "not a number".
# Seen, 2026-11-30: as said. Values up to 464 and all values from 2**-127 to 2**127 in e8m0fnu are rounded equally by both.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'ml-dtypes==0.6.0'
cat > "$dir/try.py" <<'PY'
from importlib.metadata import version

import ml_dtypes
import numpy as np
import torch


def casts(values, name):
    """The values as float8 of torch and as float8 of ml_dtypes, both read as float32."""
    values = np.array(values, dtype=np.float32)
    by_torch = torch.from_numpy(values).to(getattr(torch, name)).float().numpy()
    return by_torch, values.astype(getattr(ml_dtypes, name)).astype(np.float32)


def equal(name, values):
    return np.array_equal(*casts(values, name), equal_nan=True)


print("torch", torch.__version__, "ml_dtypes", version("ml_dtypes"))
inf, nan = np.inf, np.nan
large = [464.0, 465.0, 1e4, inf, -inf, nan]
for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
    by_torch, by_ml_dtypes = casts(large, name)
    print(name, large, "torch:", by_torch, "ml_dtypes:", by_ml_dtypes)
    assert np.array_equal(by_torch, by_ml_dtypes, equal_nan=True) == (name != "float8_e4m3fn")
    if name == "float8_e4m3fn":
        assert np.array_equal(by_torch, [448, 448, 448, 448, -448, nan], equal_nan=True)
        assert np.array_equal(by_ml_dtypes, [448, nan, nan, nan, nan, nan], equal_nan=True)
    else:
        assert not np.isfinite(by_torch[3:]).any()
scales = [-2.0, 0.0, inf, nan]
by_torch, by_ml_dtypes = casts(scales, "float8_e8m0fnu")
print("float8_e8m0fnu", scales, "torch:", by_torch, "ml_dtypes:", by_ml_dtypes)
assert np.array_equal(by_torch, [2.0, 2.0**-127, nan, nan], equal_nan=True) and np.isnan(by_ml_dtypes).all()

normal = np.random.default_rng(0).uniform(-464, 464, 100_000)
assert equal("float8_e4m3fn", normal)
assert equal("float8_e8m0fnu", 2.0 ** np.random.default_rng(1).uniform(-126, 127, 100_000))
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
