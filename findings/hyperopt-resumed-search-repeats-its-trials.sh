#!/bin/sh
# hyperopt 0.3.0 with numpy 2.4.6: a search with a seed that is resumed from `trials_save_file` evaluates its first points again.
#
# With `trials_save_file`, `fmin` saves all trials after each evaluation, and a second call continues with them. The file does not contain the random
# generator. If the program passes the same `rstate` at each start, which makes a run without a stop reproducible, the resumed search draws the same
# seeds from the beginning. Random search then evaluates exactly the points that it already has results for. `tpe.suggest` does the
# same until it has its 20 results of random points. Nothing is raised or logged, and the number of trials looks right. Without `rstate`
# the points differ. Derive the generator from the seed and the number of trials in the file, as below.
#
# Guess: the resumed search continues with the points of the search without a stop, or at least with new ones.
# Seen, 2026-11-30: 8 trials, then a resume up to 16. Of 16 points only 8 are different ones, with `rand.suggest` and with `tpe.suggest`. With a
# generator for each start all 16 are different.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'hyperopt==0.3.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import os
import pickle
import sys
from importlib.metadata import version

import numpy
from hyperopt import fmin, hp, rand, tpe

SEED = 3


def search(algorithm, trials, file, rstate):
    """The points that this call evaluates."""
    points = []

    def objective(x):
        points.append(round(x, 4))
        return (x - 1) ** 2

    fmin(
        objective, hp.uniform("x", -5, 5), algo=algorithm.suggest, max_evals=trials, rstate=rstate, trials_save_file=file,
        show_progressbar=False, verbose=False,
    )  # fmt: skip
    return points


print("hyperopt", version("hyperopt"), "numpy", numpy.__version__)
for algorithm in (rand, tpe):
    name = algorithm.__name__
    whole = search(algorithm, 16, f"{sys.argv[1]}/{name}-whole", numpy.random.default_rng(SEED))
    assert len(set(whole)) == 16
    file = f"{sys.argv[1]}/{name}"
    first = search(algorithm, 8, file, numpy.random.default_rng(SEED))
    os.rename(file, f"{file}-copy")
    for label, repeats in (("the same seed", True), ("a seed for each start", False)):
        with open(f"{file}-copy", "rb") as source, open(file, "wb") as target:
            target.write(source.read())
        with open(file, "rb") as source:
            done = len(pickle.load(source))
        resumed = search(algorithm, 16, file, numpy.random.default_rng(SEED if repeats else [SEED, done]))
        print(f"{name}, {label}: first 8 {first}, resumed {resumed}, different points: {len({*first, *resumed})}")
        assert first == whole[:8] and done == len(resumed) == 8
        assert (resumed == first) == repeats and len({*first, *resumed}) == (8 if repeats else 16)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
