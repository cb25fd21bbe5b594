#!/bin/sh
# xgboost 3.2.0: `XGBClassifier.save_model` does not store `missing`, so a reloaded model reads the mark for missing values as a number.
#
# With `missing=-999.0` the classifier treats -999 as "no value" in `fit` and in `predict`. After `save_model` and `load_model` into a new
# `XGBClassifier` the parameter is NaN again, and -999 is a very small number that goes down other branches. The predictions differ without a
# warning. On rows without missing values they are equal, so a test on complete rows passes. The documentation says that parameters
# "that are not part of the model (like metrics, max_depth, etc)" are not saved, but this one decides how predictions are made. Pass it to the
# new object again, use NaN in the data, or pickle the classifier.
#
# Guess: a saved classifier predicts as before.
# Seen, 2026-11-29: accuracy 0.99 before the save and 0.76 after the load, and 0.99 with `missing=-999.0` or from a pickle.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'xgboost==3.2.0' 'scikit-learn==1.9.1' numpy
cat > "$dir/try.py" <<'PY'
import pickle
import sys

import numpy
import xgboost
from xgboost import XGBClassifier, XGBRegressor

random = numpy.random.default_rng(0)
whole = random.normal(size=(400, 5))
targets = (whole[:, 0] + whole[:, 1] > 0).astype(int)
holes = whole.copy()
holes[random.random(whole.shape) < 0.3] = -999.0

print("xgboost", xgboost.__version__)
for kind in (XGBClassifier, XGBRegressor):
    model = kind(n_estimators=20, missing=-999.0, n_jobs=1).fit(holes, targets)
    model.save_model(f"{sys.argv[1]}/model.json")
    plain, told = kind(), kind(missing=-999.0)
    for one in (plain, told):
        one.load_model(f"{sys.argv[1]}/model.json")
    pickled = pickle.loads(pickle.dumps(model))
    scores = [one.score(holes, targets) for one in (model, plain, told, pickled)]
    print(kind.__name__, "missing:", plain.missing, "scores before, reloaded, with missing, pickled:", [round(one, 2) for one in scores])
    assert numpy.isnan(plain.missing)
    assert numpy.array_equal(model.predict(whole), plain.predict(whole))
    assert scores[0] == scores[2] == scores[3] and scores[1] < scores[0] - 0.1
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
