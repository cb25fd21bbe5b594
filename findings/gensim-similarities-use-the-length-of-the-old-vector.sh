#!/bin/sh
# gensim 4.4.0 with numpy 2.4.6: after a vector is replaced, `most_similar` divides by the length of the old vector, so a cosine can be 6.
#
# `KeyedVectors` is a table of vectors with a search. The first search computes the length of each vector and caches it in `norms`. `kv[key] = vector`
# and `add_vectors(..., replace=True)` replace the vector and keep the cached length. `most_similar`, `get_vector(norm=True)` and `get_normed_vectors`
# then divide by the wrong length, so the ranking is wrong. `similarity` of two keys computes lengths itself and is right. `save` writes the cached
# lengths, so the loaded table is wrong as well. This affects a table that receives new vectors from a training and is searched between the updates. A
# short test without a search before the first replacement passes. The documentation says that code which changes vectors must refresh the lengths,
# but these methods of gensim do not. Call `kv.fill_norms(force=True)` after each replacement. Only replacements are silent: adding a new key after a
# search makes the next search raise ValueError.
#
# Guess: a method that replaces a vector also updates the cached length.
# Seen, 2026-12-01: b = [0, 1] is replaced by [6, 8]. Its cosine to a = [1, 0] is 0.6 by `similarity` and 6.0 by `most_similar`, which ranks it before
# c = [0.9, 0.1] with a cosine of 0.99. After `save` and `load` it is 6.0 as well. After `fill_norms(force=True)` it is 0.6, and c is first.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'gensim==4.4.0' 'numpy==2.4.6' 'scipy==1.17.1'
cat > "$dir/try.py" <<'PY'
import sys

import gensim
import numpy as np
from gensim.models import KeyedVectors

print("gensim", gensim.__version__, "numpy", np.__version__)
NEW = np.array([6, 8], np.float32)


def table(search_first, replace):
    kv = KeyedVectors(2)
    kv.add_vectors(["a", "b", "c"], np.array([[1, 0], [0, 1], [0.9, 0.1]], np.float32))
    if search_first:
        assert [key for key, _ in kv.most_similar("a")] == ["c", "b"]
    replace(kv)
    assert np.array_equal(kv["b"], NEW)
    return kv


def cosines(kv, name):
    """The cosine of b to a by `similarity`, and the result of `most_similar`."""
    one, many = kv.similarity("a", "b"), kv.most_similar("a")
    length = np.linalg.norm(kv.get_vector("b", norm=True))
    print(f"{name}: similarity {one:.2f}, most_similar {[(key, round(float(cosine), 2)) for key, cosine in many]}, length of the normed vector {length:.1f}")
    assert np.isclose(one, 0.6)
    return [key for key, _ in many], dict(many)["b"]


def item(kv):
    kv["b"] = NEW


def add(kv):
    kv.add_vectors(["b"], [NEW], replace=True)


for replace in (item, add):
    order, cosine = cosines(table(False, replace), "replaced before the first search")
    assert order == ["c", "b"] and np.isclose(cosine, 0.6)
    kv = table(True, replace)
    order, cosine = cosines(kv, "replaced after a search")
    assert order == ["b", "c"] and np.isclose(cosine, 6)
    kv.save(sys.argv[1] + "/table.kv")
    order, cosine = cosines(KeyedVectors.load(sys.argv[1] + "/table.kv"), "saved and loaded")
    assert order == ["b", "c"] and np.isclose(cosine, 6)
    kv.fill_norms(force=True)
    order, cosine = cosines(kv, "after fill_norms(force=True)")
    assert order == ["c", "b"] and np.isclose(cosine, 0.6)
PY
OPENBLAS_NUM_THREADS=1 "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
