#!/bin/sh
# xgboost 3.2.0: with `subsample`, each process that continues a saved model draws the same rows as the process before it.
#
# `subsample=0.5` trains each tree on a random half of the rows. The model file does not hold the position of the random generator, and a new
# process begins with `seed` again. So a training that is restarted every few rounds uses the subsets of its first rounds forever, and the
# others never; `colsample_bytree` repeats in the same way. There is no warning. `seed_per_iteration=True`, described as seeding by the number of the iteration,
# does not help: `xgboost.train(..., xgb_model=...)` counts iterations from 0 again. Give each continuation another seed, such as the
# number of trees.
#
# Guess: the generator is continued, or other rows are drawn; with `seed_per_iteration` the resume is exact.
# Seen, 2026-11-29: 9 rounds in three processes of 3 rounds use 3 subsets of rows, with and without `seed_per_iteration`. One process uses 9,
# and so do three with the seed 1 plus the number of trees.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'xgboost==3.2.0' numpy
cat > "$dir/try.py" <<'PY'
import os
import re
import sys

import numpy
import xgboost

path, rounds, option, value = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
random = numpy.random.default_rng(0)
inputs = random.normal(size=(400, 5))
data = xgboost.DMatrix(inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(int))
# With a learning rate of almost zero, two trees are equal if they were grown from the same rows.
settings = {"max_depth": 3, "eta": 1e-12, "nthread": 1, "base_score": 0.5, "seed": 1, "subsample": 0.5, option: value}
model = xgboost.train(settings, data, rounds, xgb_model=path if os.path.exists(path) else None)
model.save_model(path)
trees = [re.sub("leaf=.*", "", tree) for tree in model.get_dump()]
print(len(trees), "trees,", len(set(trees)), "different")
PY
run() {
    "$dir/venv/bin/python" -W ignore "$dir/try.py" "$@"
}
expect() {
    echo "$1: $3"
    [ "$2" = "$3" ] || exit 1
}
expect "one process" "9 trees, 9 different" "$(run "$dir/one.json" 9 seed 1)"
for option in seed seed_per_iteration; do
    run "$dir/$option.json" 3 "$option" 1 > "$dir/out"
    run "$dir/$option.json" 3 "$option" 1 > "$dir/out"
    expect "three processes, $option=1" "9 trees, 3 different" "$(run "$dir/$option.json" 3 "$option" 1)"
done
run "$dir/seeds.json" 3 seed 1 > "$dir/out"
run "$dir/seeds.json" 3 seed 4 > "$dir/out"
expect "three processes, seeds 1, 4, 7" "9 trees, 9 different" "$(run "$dir/seeds.json" 3 seed 7)"
