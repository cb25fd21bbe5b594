#!/bin/sh
# xgboost 3.2.0: after early stopping, a continued `fit` adds trees that `predict` never uses.
#
# Early stopping stores the best iteration as an attribute of the model, and `predict` of the scikit-learn classes uses the trees up to it.
# `fit(..., xgb_model=model)` continues with the old trees and keeps the attribute. Without early stopping in the second call it is not updated,
# so all new trees are ignored: the continued model gives exactly the predictions of the old one, without a warning. The number of trees has
# grown, and a save and a load change nothing. `Booster.predict` uses all trees. Before the second `fit`, or after it, remove the attribute:
# `model.get_booster().set_attr(best_iteration=None)`.
#
# Guess: the continued model predicts with all its trees.
# Seen, 2026-11-29: 21 trees with best iteration 17, then 71 trees, and the accuracy stays at 0.72. Without the attribute it is 1.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'xgboost==3.2.0' 'scikit-learn==1.9.1' numpy
cat > "$dir/try.py" <<'PY'
import sys

import numpy
import xgboost
from xgboost import XGBClassifier

random = numpy.random.default_rng(0)


def some(rows):
    inputs = random.normal(size=(rows, 5))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(int)


inputs, targets = some(400)
check_inputs, check_targets = some(200)
noisy = numpy.where(random.random(400) < 0.3, 1 - targets, targets)


def probabilities(model):
    return model.predict_proba(inputs)[:, 1]


print("xgboost", xgboost.__version__)
first = XGBClassifier(n_estimators=100, early_stopping_rounds=3, n_jobs=1)
first.fit(inputs, noisy, eval_set=[(check_inputs, check_targets)], verbose=False)
best = first.best_iteration
longer = XGBClassifier(n_estimators=50, n_jobs=1).fit(inputs, targets, xgb_model=first)
trees = first.get_booster().num_boosted_rounds(), longer.get_booster().num_boosted_rounds()
print("trees:", *trees, "best iteration:", best, "attributes of the continued model:", longer.get_booster().attributes())
print("accuracy of the first", first.score(inputs, targets), "and of the continued one", longer.score(inputs, targets))
assert trees[1] == trees[0] + 50 and best < trees[0]
assert numpy.array_equal(probabilities(first), probabilities(longer))

longer.save_model(f"{sys.argv[1]}/model.json")
again = XGBClassifier()
again.load_model(f"{sys.argv[1]}/model.json")
assert numpy.array_equal(probabilities(first), probabilities(again))

of_all = longer.get_booster().predict(xgboost.DMatrix(inputs))
longer.get_booster().set_attr(best_iteration=None)
print("without the attribute", longer.score(inputs, targets))
assert numpy.array_equal(of_all, probabilities(longer)) and longer.score(inputs, targets) > first.score(inputs, targets)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
