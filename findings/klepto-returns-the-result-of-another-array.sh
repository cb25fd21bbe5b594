#!/bin/sh
# klepto 0.2.8 and memoization 0.3.2 with numpy 2.4.6: a cached function returns the result of another array of more than 1,000 elements.
#
# Both packages cache the results of a function. The keys of the maps `stringmap` and `hashmap(algorithm=...)` of klepto, of its caches in
# `klepto.safe`, and of `memoization.cached` are made of the text of the arguments. NumPy and torch shorten the text of a large array: the first and
# the last three elements of each dimension, and three dots. So two checkpoints that differ in the middle have one key, and the second gets the result
# of the first. An archive in a file also gives it to later processes. There is no error or warning. `joblib.Memory` and `cachier` read all elements.
# With klepto use `picklemap(serializer="pickle")`.
#
# Guess: a cache that accepts arrays distinguishes them by all elements, or raises TypeError because they cannot be hashed.
# Seen, 2026-11-30: the mean of 2,000 zeros is cached, and is returned for an array with a one in the middle: 0.0 instead of 0.0005, for arrays, with
# klepto also for tensors, and in a second process that opens the archive. With picklemap(serializer="pickle"), joblib and cachier it is 0.0005.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'klepto==0.2.8' 'memoization==0.3.2' 'cachier==4.2.0' 'joblib==1.5.3'
cat > "$dir/try.py" <<'PY'
import subprocess
import sys
from importlib.metadata import version

import cachier
import joblib
import klepto
import memoization
import numpy as np
import torch
from klepto.archives import file_archive
from klepto.keymaps import hashmap, picklemap, stringmap

SECOND = """if True:
    import sys, klepto, numpy
    from klepto.archives import file_archive
    from klepto.keymaps import hashmap
    archive = file_archive(sys.argv[1], cached=False)
    mean = klepto.inf_cache(cache=archive, keymap=hashmap(algorithm="md5"))(lambda weights: float(weights.mean()))
    weights = numpy.zeros(2000)
    weights[1000] = float(sys.argv[2])
    print(mean(weights))
"""


def mean(weights):
    return float(weights.mean())


def cached_means(cached, make):
    """Mean of zeros, and of zeros with a one, through one cache."""
    zeros, other = make(), make()
    other[1000] = 1
    return cached(zeros), cached(other)


print("klepto", version("klepto"), "memoization", version("memoization"), "numpy", np.__version__, "torch", torch.__version__)
makers = {"array": lambda: np.zeros(2000), "tensor": lambda: torch.zeros(2000, dtype=torch.float64)}
caches = {
    "klepto stringmap": (klepto.inf_cache(keymap=stringmap()), True),
    "klepto hashmap md5": (klepto.inf_cache(keymap=hashmap(algorithm="md5")), True),
    "klepto.safe.lru_cache": (klepto.safe.lru_cache(), True),
    "memoization.cached": (memoization.cached, True),
    "klepto picklemap pickle": (klepto.inf_cache(keymap=picklemap(serializer="pickle")), False),
    "joblib": (joblib.Memory(f"{sys.argv[1]}/joblib", verbose=0).cache, False),
    "cachier": (cachier.cachier(backend="memory"), False),
}
for name, (cache, wrong) in caches.items():
    for kind, make in makers.items():
        if kind == "tensor" and "klepto" not in name:  # the others distinguish tensors by identity, or do not read them
            continue
        cached = cache(mean)
        found = cached_means(cached, make)
        print(f"{name}, {kind}: {found}")
        assert found == ((0.0, 0.0) if wrong else (0.0, 0.0005))
found = [float(subprocess.check_output([sys.executable, "-W", "ignore", "-c", SECOND, f"{sys.argv[1]}/archive.py", one])) for one in "01"]
print("klepto with a file, two processes:", found)
assert found == [0.0, 0.0]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
