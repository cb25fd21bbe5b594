#!/bin/sh
# mlforecast 1.1.0: after `update`, expanding and exponentially weighted features use only the last of the new rows.
#
# `MLForecast.update` appends new rows to the stored series, so that a saved model forecasts from the present without a new fit. Features are then
# computed from the state at the fit and the last value. `RollingMean` reads the rows it needs. `ExpandingMean`, `ExpandingStd` and
# `ExponentiallyWeightedMean` keep a running state that `update` does not advance, so all new rows except the last are missing in it. Updates of one
# row each do not help. The forecasts differ, and there is no error or warning. `predict(new_df=...)` with the whole history computes the features
# again and is right.
#
# Guess: a forecast after `update` is equal to one with the whole history.
# Seen, 2026-11-30: a fit on 1, 2, 3, 4 and an update with 50, 60, 70, 80. The expanding mean is 21.5 instead of 33.75, and the weighted one is 41.1
# instead of 68.3. The rolling mean of 3 is 70 in both ways. Save and load change nothing in this.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mlforecast==1.1.0' 'numpy==2.4.6' 'pandas==2.3.3' 'scikit-learn==1.9.1'
cat > "$dir/try.py" <<'PY'
import sys
import warnings
from importlib.metadata import version

import numpy as np
import pandas as pd
from mlforecast import MLForecast
from mlforecast.lag_transforms import ExpandingMax, ExpandingMean, ExpandingStd, ExponentiallyWeightedMean, RollingMean
from sklearn.base import BaseEstimator

warnings.simplefilter("error")


class Feature(BaseEstimator):
    """A model whose forecast is its feature."""

    def fit(self, features, targets):
        return self

    def predict(self, features):
        return np.asarray(features)[:, 0]


history = pd.DataFrame({"unique_id": "one", "ds": pd.date_range("2026-01-01", periods=8), "y": [1.0, 2, 3, 4, 50, 60, 70, 80]})
old, new = history[:4], history[4:]


def fitted(transform, rows):
    return MLForecast(models=[Feature()], freq="D", lag_transforms={1: [transform]}).fit(rows)


def feature(forecaster, **options):
    return round(float(forecaster.predict(1, **options)["Feature"].iloc[0]), 4)


print("mlforecast", version("mlforecast"), "pandas", pd.__version__, "numpy", np.__version__)
kinds = (RollingMean(3), True), (ExpandingMax(), True), (ExpandingMean(), False), (ExpandingStd(), False), (ExponentiallyWeightedMean(0.5), False)
for transform, right in kinds:
    whole = feature(fitted(transform, old), new_df=history)
    assert whole == feature(fitted(transform, history))
    updated = fitted(transform, old)
    updated.update(new)
    by_row = fitted(transform, old)
    for row in range(len(new)):
        by_row.update(new[row : row + 1])
    fitted(transform, old).save(f"{sys.argv[1]}/model")
    loaded = MLForecast.load(f"{sys.argv[1]}/model")
    loaded.update(new)
    found = [feature(forecaster) for forecaster in (updated, by_row, loaded)]
    print(f"{type(transform).__name__}: whole history {whole}; after update, of one row each, and after a load: {found}")
    assert len(set(found)) == 1 and (found[0] == whole) == right
    if isinstance(transform, ExpandingMean):
        assert (whole, found[0]) == (33.75, 21.5)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
