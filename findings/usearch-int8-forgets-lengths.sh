#!/bin/sh
# usearch 2.26.6: an index of `dtype="i8"` normalizes each vector, also with the metric "l2sq", so vectors of other lengths are equal.
#
# The quantization to int8 divides each float vector by its length. For the cosine metric this changes nothing. An index with squared distances or
# inner products accepts the same option, and then compares only directions: a vector and a hundred times that vector have the distance 0. `get`
# returns integers of the scaled vector, in which the length is lost. There is no error or warning. The default type is also not float32 but bfloat16.
# Pass `dtype="f32"` or "f16" for metrics other than "cos", or convert to int8 before `add`: int8 vectors are stored as they are.
#
# Guess: an int8 index is less exact, but finds the nearest of vectors that are far from each other.
# Seen, 2026-11-30: vectors [1, 0, 0, 0] and [100, 0, 0, 0], a query at [90, 0, 0, 0], metric l2sq: both have the distance 0 with i8, and 7921 and 100
# with f32 and int8 vectors. Among 1,000 vectors of random lengths, the one with the largest inner product is found for 45 of 100 queries with i8, and
# for all with f16.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'usearch==2.26.6' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
from importlib.metadata import version

import numpy as np
from usearch.index import Index

print("usearch", version("usearch"), "numpy", np.__version__)
pair, query = np.array([[1, 0, 0, 0], [100, 0, 0, 0]]), np.array([90, 0, 0, 0])
for dtype, given, expected in (("f32", np.float32, [100, 7921]), ("i8", np.int8, [100, 7921]), ("i8", np.float32, [0, 0])):
    index = Index(ndim=4, metric="l2sq", dtype=dtype)
    index.add(np.arange(2), pair.astype(given))
    matches = index.search(query.astype(given), 2)
    found = {int(key): float(distance) for key, distance in zip(matches.keys, matches.distances, strict=True)}
    print(f"index of {dtype}, vectors of {given.__name__}: distances by vector {found}, stored {index.get(1).tolist()}")
    assert sorted(found.values()) == expected

random = np.random.default_rng(0)
vectors = (random.normal(size=(1000, 16)) * random.uniform(1, 20, size=(1000, 1))).astype(np.float32)
queries = vectors[:200] + random.normal(size=(200, 16)).astype(np.float32) * 0.1
largest = (queries @ vectors.T).argmax(1)
for dtype, least, most in (("f16", 0.99, 1), ("i8", 0.2, 0.7)):
    index = Index(ndim=16, metric="ip", dtype=dtype, expansion_add=400, expansion_search=400)
    index.add(np.arange(1000), vectors, threads=1)
    found = float((index.search(queries, 1).keys.reshape(-1) == largest).mean())
    print(f"{dtype}, inner product: the best vector is found for {found:.2f} of the queries")
    assert least <= found <= most
PY
"$dir/venv/bin/python" "$dir/try.py"
