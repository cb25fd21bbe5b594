#!/bin/sh
# bayesian-optimization 3.4.0: after `load_state` the delay before the decay of exploration begins again.
#
# The acquisition functions decay `kappa` or `xi` at each suggestion, after `exploration_decay_delay` suggestions. `save_state` writes the present
# `kappa` or `xi`, the delay, all points and the state of the random generator, but not the number of suggestions. After `load_state` it is 0. So a
# search that is stopped more often than once per delay explores to its end as at its beginning. There is no error or warning. Without a delay the
# search is equal to one without a stop. Save `optimizer.acquisition_function.i` in addition, and set it after the load. `set_bounds` is not in the
# file either.
#
# Guess: a search that is saved and loaded continues as without a stop, since the file has the decay and its delay.
# Seen, 2026-11-30: a delay of 4 and a decay of 0.5. Without a stop kappa is 0.023 after 10 suggestions. With a load after suggestion 3, 6 and 9 it is
# still 3. Other points are suggested. With the counter set after each load, kappa and all points are equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'bayesian-optimization==3.4.0' 'numpy==2.4.6' 'scipy==1.17.1' 'scikit-learn==1.9.1'
cat > "$dir/try.py" <<'PY'
import sys
from importlib.metadata import version

import numpy as np
from bayes_opt import BayesianOptimization
from bayes_opt.acquisition import ExpectedImprovement, UpperConfidenceBound

SUGGESTIONS = 10


def score(x, y):
    return -((x - 1) ** 2) - (y + 1) ** 2 + np.sin(5 * x)


def search(create, loads, counter=False):
    """Return all points, and the strength of exploration at the end."""
    def new():
        bounds = {"x": (-3, 3), "y": (-3, 3)}
        return BayesianOptimization(f=score, pbounds=bounds, acquisition_function=create(), random_state=3, verbose=0)

    optimizer = new()
    optimizer.maximize(init_points=3, n_iter=0)
    for suggestion in range(SUGGESTIONS):
        if suggestion in loads:
            optimizer.save_state(f"{sys.argv[1]}/state.json")
            done = optimizer.acquisition_function.i
            optimizer = new()
            optimizer.load_state(f"{sys.argv[1]}/state.json")
            if counter:
                optimizer.acquisition_function.i = done
        optimizer.maximize(init_points=0, n_iter=1)
    function = optimizer.acquisition_function
    points = [tuple(float(value) for value in result["params"].values()) for result in optimizer.res]
    return points, function.kappa if isinstance(function, UpperConfidenceBound) else function.xi


print("bayesian-optimization", version("bayesian-optimization"), "scikit-learn", version("scikit-learn"))
for name, kind, first in (("kappa", UpperConfidenceBound, 3.0), ("xi", ExpectedImprovement, 0.1)):
    for delay in (None, 4):
        def create(delay=delay, kind=kind, name=name, first=first):
            return kind(**{name: first}, exploration_decay=0.5, exploration_decay_delay=delay)

        whole, strength = search(create, ())
        loaded, of_loaded = search(create, (3, 6, 9))
        repaired, of_repaired = search(create, (3, 6, 9), counter=True)
        print(f"{name}, delay {delay}: {strength:.4f} at the end, with loads {of_loaded:.4f}, equal points: {loaded == whole}")
        assert of_repaired == strength < first and repaired == whole
        assert of_loaded == (strength if delay is None else first)
        assert (loaded == whole) == (delay is None)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
