#!/bin/sh
# diskcache 5.6.3: a NaN that is stored as a value is read as None, and a stored best loss of NaN counts as never stored.
#
# diskcache hands a Python float to SQLite, which stores NaN as NULL. So `cache["loss"] = nan` returns None, without an error, and `nan` in
# a `Deque` or an `Index`, which use the same cache, also becomes None. A function with `memoize` that returns NaN returns None from its second
# call on. `cache.get(key, default)` returns None instead of the default. An infinity, a NaN in a list, and a NaN of numpy's type are read as
# stored, since SQLite has infinities, and diskcache pickles all other types. Store `numpy.float64(value)`.
#
# Guess: a float is read as it was stored.
# Seen, 2026-11-30: None from the cache, the deque, the index and the memoized function, also in a second process.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'diskcache==5.6.3' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys

import diskcache
import numpy

cache = diskcache.Cache(sys.argv[1] + "/cache")
deque = diskcache.Deque(directory=sys.argv[1] + "/deque")
index = diskcache.Index(sys.argv[1] + "/index")
nan, infinity = float("nan"), float("inf")


@cache.memoize()
def mean_loss(count):
    return infinity - infinity if count == 0 else 1.0


if sys.argv[2] == "write":
    for key, value in (("loss", nan), ("limit", infinity), ("list", [nan]), ("numpy", numpy.float64(nan))):
        cache[key] = value
    deque.append(nan)
    index["loss"] = nan
    first, second = mean_loss(0), mean_loss(0)
    print("diskcache", diskcache.__version__, "first call:", first, "second call:", second)
    assert first != first and second is None
read = [cache["loss"], cache.get("loss", 2.0), deque[0], index["loss"]]
print(sys.argv[2], "NaN is read as", read, "but:", cache["limit"], cache["list"], cache["numpy"])
assert read == [None] * 4
assert cache["limit"] == infinity and cache["list"][0] != cache["list"][0] and numpy.isnan(cache["numpy"])
PY
for process in write read; do "$dir/venv/bin/python" "$dir/try.py" "$dir" "$process"; done
