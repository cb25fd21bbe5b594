#!/bin/sh
# thinc 9.1.1 with numpy 2.4.6: a restored optimizer uses the moments of another layer if the process has created another model before.
#
# An optimizer of thinc, the library below spaCy, stores its moments by the id of a layer. Ids are numbers that count all layers that the process
# creates. `from_bytes` and `from_disk` restore the weights of a model, but not the ids. So if a script saves the model with `to_bytes` and pickles
# the optimizer, the training continues exactly only if the next process creates the same layers in the same order. One more layer before them, such
# as an embedding that is only used for a test, moves each id by one: layers of the same shape train with the moments of the next layer, the last one
# begins with zeros, and the old entries remain. There is no error or warning. Pickle the model and the optimizer in one call, which also keeps the
# ids.
#
# Guess: a pickled optimizer belongs to the layers by their names or order, or its use with other layers is refused.
# Seen, 2026-11-30: four layers of 4 numbers. In a new process the predictions after 5 further steps are equal to those without a stop. With one layer
# created before, they differ, and the first layer has used the moments of the second. From one pickle they are equal in both cases.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'thinc==9.1.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import pickle
import sys
from importlib.metadata import version

import numpy as np
from thinc.api import Adam, Linear, chain, fix_random_seed

random = np.random.default_rng(0)
rows = random.normal(size=(32, 4)).astype("float32")
targets = rows[:, ::-1] * 2


def build():
    fix_random_seed(1)
    model = chain(Linear(4), Linear(4), Linear(4), Linear(4))
    model.initialize(X=rows, Y=targets)
    return model


def train(model, optimizer, steps):
    """Train, and return the predictions."""
    for _ in range(steps):
        predicted, backward = model.begin_update(rows)
        backward((predicted - targets) / 32)
        model.finish_update(optimizer)
    return model.predict(rows)


folder, mode = sys.argv[1:]
if mode == "save":
    print("thinc", version("thinc"), "numpy", np.__version__)
    model, optimizer = build(), Adam(0.01)
    train(model, optimizer, 10)
    with open(f"{folder}/state", "wb") as file:
        pickle.dump((model.to_bytes(), pickle.dumps(optimizer), pickle.dumps((model, optimizer))), file)
    np.save(f"{folder}/expected.npy", train(model, optimizer, 5))
    sys.exit()
if mode == "other":
    Linear(4)  # a layer that is not used
with open(f"{folder}/state", "rb") as file:
    weights, optimizer, both = pickle.load(file)
expected = np.load(f"{folder}/expected.npy")
model, optimizer = build().from_bytes(weights), pickle.loads(optimizer)
before = {key: moment.copy() for key, moment in optimizer.mom1.items()}
first, second = (layer.id for layer in model.layers[:2])
found = train(model, optimizer, 5)
together = train(*pickle.loads(both), 5)
print(f"{mode}: layers {[layer.id for layer in model.layers]}, moments at the load for {sorted({key[0] for key in before})}")
print(f"{mode}: largest difference of predictions {np.abs(found - expected).max():.2g}, from one pickle {np.abs(together - expected).max():.2g}")
assert np.array_equal(together, expected)
assert np.array_equal(found, expected) == (mode == "same")
if mode == "other":
    assert (first, "W") in before and (model.layers[-1].id, "W") not in before and (model.layers[-1].id, "W") in optimizer.mom1
PY
for mode in save same other; do OPENBLAS_NUM_THREADS=1 "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" "$mode"; done
