#!/bin/sh
# treelite 4.8.1 with lightgbm 4.7.0: a model that was trained with `zero_as_missing=True` predicts other values for rows with zeros.
#
# With this option, LightGBM treats zeros as missing and sends them in the direction that each tree learned for missing values. The model file has both
# in the field `decision_type` of each node. `treelite.frontend.from_lightgbm` and `load_lightgbm_model` drop them, and Treelite compares a zero with the
# threshold. Nothing is raised or logged. NaN in a row has the same result as a zero, so replacing the zeros does not help. Models without the option are
# converted exactly, with NaN as well. Sparse data is the usual reason for the option, so most rows can be affected. Replace zeros by NaN before the
# training, train without the option, and replace them before each prediction.
#
# Guess: the converted model sends zeros where LightGBM does, or the option is refused.
# Seen, 2026-12-01: predictions of rows with a zero differ by up to 2. Rows without a zero are equal. A model that was trained with NaN in place of
# zeros is equal for all rows.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'treelite==4.8.1' 'lightgbm==4.7.0' 'numpy==2.4.6' 'scikit-learn==1.8.0'
cat > "$dir/try.py" <<'PY'
import sys

import lightgbm
import numpy as np
import treelite

print("treelite", treelite.__version__, "lightgbm", lightgbm.__version__)
random = np.random.default_rng(0)
x = random.normal(size=(300, 4))
x[::3, 0] = 0
x[::5, 1] = 0
y = np.where(x[:, 0] == 0, 2, x[:, 0]) + np.where(x[:, 1] == 0, -1, x[:, 1])
with_zeros = (x == 0).any(axis=1)


def differences(name, trained, rows, **options):
    """The largest difference for rows with and without a zero."""
    booster = lightgbm.LGBMRegressor(n_estimators=20, n_jobs=1, verbose=-1, **options).fit(trained, y).booster_
    booster.save_model(sys.argv[1] + "/model.txt")
    models = treelite.frontend.from_lightgbm(booster), treelite.frontend.load_lightgbm_model(sys.argv[1] + "/model.txt")
    both = [treelite.gtil.predict(model, rows).reshape(-1) for model in models]
    assert np.array_equal(*both)
    error = np.abs(both[0] - booster.predict(rows))
    largest = error[with_zeros].max(), error[~with_zeros].max()
    print(f"{name}: with a zero {largest[0]:.2g}, without {largest[1]:.2g}")
    return largest


missing = np.where(x == 0, np.nan, x)
assert max(differences("zeros as numbers", x, x)) < 1e-9
for rows, name in ((x, "zeros"), (missing, "NaN in place of zeros")):
    with_zero, without = differences(f"zero_as_missing, rows with {name}", x, rows, zero_as_missing=True)
    assert with_zero > 0.1 and without < 1e-9
assert max(differences("trained with NaN in place of zeros", missing, missing)) < 1e-9
PY
OMP_NUM_THREADS=1 "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
