#!/bin/sh
# skops 0.16.0 with numpy 2.4.6: a `deque` is loaded empty, and other values change or are lost without an error.
#
# `skops.io` is the safe replacement for pickle for scikit-learn models. `dump` accepts a `deque`, such as the window of the last losses that
# an estimator keeps for `partial_fit`, and stores its type only. The other losses: of the keys 1 and "1" of a dict one remains; a `SeedSequence`
# has no entropy; a masked array has the default `fill_value`. All this also holds inside an estimator. Types
# that skops does not support, such as complex numbers, end in an error, so a load without an error looks complete. pickle and joblib keep all four.
#
# Guess: values come back as they were, or `dump` refuses them.
# Seen, 2026-11-29: deque([1, 2], maxlen=3) becomes deque([]), {1: "a", "1": "b"} becomes {1: "b"}, entropy 3 becomes None, fill_value 7 the
# default 999999.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'skops==0.16.0' 'scikit-learn==1.9.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import collections
import pickle

import numpy
import skops
import skops.io
from sklearn.linear_model import SGDRegressor


def by_skops(value):
    data = skops.io.dumps(value)
    return skops.io.loads(data, trusted=skops.io.get_untrusted_types(data=data))


def by_pickle(value):
    return pickle.loads(pickle.dumps(value))


def seen(copied):
    """The four values after a round trip inside an estimator."""
    model = SGDRegressor().fit([[0.0], [1.0]], [0.0, 1.0])
    model.window_ = collections.deque([1, 2], maxlen=3)
    model.names_ = {1: "a", "1": "b"}
    model.seeds_ = numpy.random.SeedSequence(3)
    model.masked_ = numpy.ma.array([1, 2], mask=[False, True], fill_value=7)
    again = copied(model)
    assert numpy.array_equal(model.coef_, again.coef_)
    return again.window_, again.names_, again.seeds_.entropy, int(again.masked_.fill_value)


print("skops", skops.__version__)
print("pickle", seen(by_pickle))
print("skops ", seen(by_skops))
assert seen(by_pickle) == (collections.deque([1, 2], maxlen=3), {1: "a", "1": "b"}, 3, 7)
assert seen(by_skops) == (collections.deque([]), {1: "b"}, None, 999999)
try:
    by_skops(1 + 2j)
except TypeError as error:
    print("a complex number:", error)
else:
    raise AssertionError("a complex number was accepted")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
