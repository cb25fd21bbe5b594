#!/bin/sh
# catboost 1.2.10: a snapshot is continued with other labels, and a finished one is returned as the model of the new target.
#
# `save_snapshot=True` compares the features and most parameters of the new call with those of the snapshot and raises an error if they
# differ. It does not compare labels, sample weights or the learning rate. So a loop that trains one model for each target column and
# leaves `snapshot_file` at its default gets the first target's model each time, without a warning. Name the file after the target.
#
# Seen: two opposite targets of the same features. The second model predicts the first target (accuracy 1.0 on it and 0.0 on its own), has
# the same trees, and no tree was added. With other features or another depth the call raises CatBoostError.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'catboost==1.2.10'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
from catboost import CatBoostClassifier, CatBoostError

FEATURES = np.random.default_rng(0).normal(size=(200, 5))
TARGET = (FEATURES[:, 0] > 0).astype(int)


def fitted(place, features, target, weights=None, **how):
    model = CatBoostClassifier(
        iterations=20, random_seed=1, thread_count=1, verbose=0, save_snapshot=True, train_dir=f"{sys.argv[1]}/{place}",
        **{"learning_rate": 0.3, "depth": 4, **how},
    )
    return model.fit(features, target, sample_weight=weights)


def refused(place, features, **how):
    try:
        fitted(place, features, TARGET, **how)
    except CatBoostError:
        return True
    return False


first = fitted("one", FEATURES, TARGET)
second = fitted("one", FEATURES, 1 - TARGET)
alone = fitted("two", FEATURES, 1 - TARGET)
same = np.array_equal(first.predict_proba(FEATURES), second.predict_proba(FEATURES))
scores = [model.score(FEATURES, 1 - TARGET) for model in (second, alone)]
print("second model equals the first:", same, "trees:", second.tree_count_, "accuracy on its own target:", scores[0])
print("in a folder of its own:", scores[1])
assert same and second.tree_count_ == 20 and scores[0] < 0.1 and scores[1] > 0.9

weighted = fitted("one", FEATURES, TARGET, np.arange(1, 201))
faster = fitted("one", FEATURES, TARGET, learning_rate=0.9)
for model in (weighted, faster):
    assert np.array_equal(first.predict_proba(FEATURES), model.predict_proba(FEATURES))
print("other weights and another learning rate: the first model as well")
assert refused("one", FEATURES + 1) and refused("one", FEATURES, depth=6)
print("other features, another depth: CatBoostError")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
