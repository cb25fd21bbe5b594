#!/bin/sh
# cmaes 0.13.1: a pickled `CMA` has no random generator, so a resumed search draws other points each time, whatever seeds are set.
#
# `CMA`, `SepCMA` and `CatCMA` remove their generator from the pickle, and create one without a seed when they are loaded. `XNES` of the same package keeps
# its generator. So a search that was created with `seed=` and is saved between two generations does not continue as without a stop. Two loads of one
# file also differ, and `numpy.random.seed` has no effect on them. Nothing is raised or logged. Save `optimizer._rng` in addition, and set it after the load.
#
# Guess: an optimizer with a seed continues exactly from its pickle.
# Seen, 2026-11-30: after a load the next point of the first three differs from the one without a stop, and differs in a second load. With XNES it is
# equal, and with the saved generator it is equal up to rounding.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'cmaes==0.13.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import pickle
from importlib.metadata import version

import cmaes
import numpy as np


def numbers(candidate):
    """The continuous part of a candidate, which of CatCMA also has a categorical one."""
    return np.asarray(candidate if isinstance(candidate, np.ndarray) else candidate[0])


def generation(optimizer):
    candidates = [optimizer.ask() for _ in range(optimizer.population_size)]
    optimizer.tell([(candidate, float(np.square(numbers(candidate) - 1.2).sum())) for candidate in candidates])


print("cmaes", version("cmaes"), "numpy", np.__version__)
for kind, extra in ((cmaes.CMA, {}), (cmaes.SepCMA, {}), (cmaes.CatCMA, {"cat_num": np.array([3, 3])}), (cmaes.XNES, {})):
    optimizer = kind(mean=np.zeros(4), sigma=0.5, seed=3, **extra)
    for _ in range(5):
        generation(optimizer)
    saved, generator = pickle.dumps(optimizer), pickle.dumps(optimizer._rng)
    expected = numbers(optimizer.ask())
    loaded = []
    for _ in range(2):
        np.random.seed(3)
        loaded.append(numbers(pickle.loads(saved).ask()))
    repaired = pickle.loads(saved)
    repaired._rng = pickle.loads(generator)
    equal = [np.array_equal(point, expected) for point in loaded]
    print(kind.__name__, "equal to the run without a stop:", equal, "first number:", expected[0], [point[0] for point in loaded])
    assert equal == ([True, True] if kind is cmaes.XNES else [False, False])
    assert np.array_equal(*loaded) == (kind is cmaes.XNES)
    assert np.allclose(numbers(repaired.ask()), expected, rtol=1e-9, atol=0)  # the pickle has one half of the covariance
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
