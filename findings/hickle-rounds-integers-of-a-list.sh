#!/bin/sh
# hickle 5.0.3 with numpy 2.4.6: an integer in a list with a float is rounded, and a `Counter` is read as a count of its own entries.
#
# hickle stores Python objects in HDF5 and calls itself a drop-in replacement for pickle. A list or tuple of numbers is stored as one array with one type,
# and read as numbers of that type. So in `[seed, rate]` a seed above 2**53 is another number after the load, and in `[1, True]` the
# bool is an integer. `Counter({"cat": 2})` is stored as pairs and then counted: it is read as `Counter({("cat", 2): 1})`. There is no
# error. Both are right if each value has its own key in a dict, and in pickle.
#
# Guess: what a replacement for pickle dumps without an error is loaded as it was.
# Seen, 2026-11-29: [9007199254740993, 0.5] is read as [9007199254740992.0, 0.5], and the Counter as said. A dict with the same values
# is equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numpy==2.4.6' setuptools
"$dir/venv/bin/pip" -q install 'hickle==5.0.3'
cat > "$dir/try.py" <<'PY'
import pickle
import sys
from collections import Counter
from importlib.metadata import version

import hickle

FILE = sys.argv[1] + "/state.hkl"
SEED = 2**53 + 1


def loaded(value):
    hickle.dump(value, FILE, mode="w")
    found = hickle.load(FILE)
    print(value, "is read as", found, [type(item).__name__ for item in found])
    assert pickle.loads(pickle.dumps(value)) == value
    return found


print("hickle", version("hickle"), "numpy", version("numpy"))
assert loaded({"seed": SEED, "rate": 0.5}) == {"seed": SEED, "rate": 0.5}
assert int(loaded([SEED, 0.5])[0]) == SEED - 1
assert int(loaded((SEED, 0.5))[0]) == SEED - 1
assert [type(item).__name__ for item in loaded([1, True])] == ["int64", "int64"]
assert loaded(Counter(cat=2, dog=3)) == Counter({("cat", 2): 1, ("dog", 3): 1})
assert loaded({"cat": 2, "dog": 3}) == {"cat": 2, "dog": 3}
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
