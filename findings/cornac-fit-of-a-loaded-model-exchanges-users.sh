#!/bin/sh
# cornac 3.0.1: `fit` of a loaded model trains nothing, and gives the factors of each user to another one if the new data set has another order.
#
# A cornac model numbers users and items in the order of its data set. `load` sets `trainable` to False by default. `fit` of such a model still takes
# the numbers of the new data set, and leaves the factors as they are. So the ratings of one user become those of another. With `load(...,
# trainable=True)`, and for a second `fit` in one process, the factors are a wrong start of the training instead. The only warning, in all cases, says
# that the fit overwrites the previous model. Before a `fit` on new data, reorder the factors, or create a new model. A second `fit` of one process
# also continues; it does not begin again.
#
# Guess: `fit` trains the model again, as its warning says, or it continues with the factors of the same users.
# Seen, 2026-11-30: users 0 and 2 like even items, 1 and 3 odd ones. After a load and a `fit` on the same ratings with the users in the order 3, 2, 1,
# 0, each gets the ratings of the opposite kind, and no factor has changed. With trainable=True the ratings are still wrong after one iteration.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'cornac==3.0.1' 'numpy==2.4.6' 'scipy==1.17.1'
cat > "$dir/try.py" <<'PY'
import sys
import warnings
from importlib.metadata import version

import numpy as np
from cornac.data import Dataset
from cornac.models import MF

ITEMS = ["item0", "item1", "item2", "item3", "item4", "item5"]
USERS = ["user0", "user1", "user2", "user3"]


def likes(user, item):
    return int(user[-1]) % 2 == int(item[-1]) % 2


def data_set(users):
    return Dataset.from_uir([(user, item, 5.0 if likes(user, item) else 1.0) for user in users for item in ITEMS], seed=1)


def right_ratings(model):
    """Share of ratings on the right side of 3."""
    rates = {(user, item): model.rate(model.uid_map[user], model.iid_map[item]) for user in USERS for item in ITEMS}
    return sum((rate > 3) == likes(*pair) for pair, rate in rates.items()) / len(rates)


def fitted(model, users):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(data_set(users))
    return [str(each.message) for each in caught]


print("cornac", version("cornac"), "numpy", np.__version__)
model = MF(k=4, max_iter=200, learning_rate=0.05, seed=3)
model.fit(data_set(USERS))
path = model.save(sys.argv[1])
loaded = MF.load(path)
print("right ratings:", right_ratings(model), "after a load:", right_ratings(loaded))
assert right_ratings(model) == right_ratings(loaded) == 1

factors = loaded.u_factors.copy()
messages = fitted(loaded, USERS)
print("fit on the same data:", right_ratings(loaded), messages)
assert np.array_equal(factors, loaded.u_factors) and messages == ["Model is already fitted. Re-fitting will overwrite the previous model."]
fitted(loaded, USERS[::-1])
print("fit on the data in another order:", right_ratings(loaded))
assert np.array_equal(factors, loaded.u_factors) and right_ratings(loaded) == 0

for name, again in (("loaded with trainable=True", MF.load(path, trainable=True)), ("not loaded", model)):
    again.max_iter, again.learning_rate = 1, 0.01
    fitted(again, USERS[::-1])
    print(f"{name}, one iteration in another order:", right_ratings(again))
    assert right_ratings(again) == 0
fresh = MF(k=4, max_iter=200, learning_rate=0.05, seed=3)
fitted(fresh, USERS[::-1])
assert right_ratings(fresh) == 1
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
