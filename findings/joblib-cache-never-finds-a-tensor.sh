#!/bin/sh
# joblib 1.6.0 with torch 2.13.0: `Memory` computes a function of a tensor again in each process, and each time stores another result.
#
# joblib hashes an argument by its pickle. For a tensor this pickle contains the address of its memory. So equal tensors have different hashes, and a
# cached result is found only for the same tensor object in the same process. Nothing is raised or logged. The cache grows with each call. NumPy arrays
# are hashed by their content. A module is hashed with its tensors, so it has the same problem. `hash` of two states is also no
# test of whether they are equal. Pass `tensor.numpy()`.
#
# Guess: equal tensors have equal hashes, as NumPy arrays do.
# Seen, 2026-11-30: three processes call the function once with an equal tensor and once with an equal array. The function of the tensor runs
# three times and its cache has three entries, the function of the array runs once.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'joblib==1.6.0'
cat > "$dir/features.py" <<'PY'
import sys

import joblib
import numpy as np
import torch

memory = joblib.Memory(sys.argv[1] + "/cache", verbose=0)


@memory.cache
def of_tensor(tensor):
    with open(sys.argv[1] + "/tensor", "a") as calls:
        calls.write("x")
    return tensor.sum()


@memory.cache
def of_array(array):
    with open(sys.argv[1] + "/array", "a") as calls:
        calls.write("x")
    return array.sum()


if __name__ == "__main__":
    of_tensor(torch.arange(1000.0))
    of_array(np.arange(1000.0))
PY
cat > "$dir/try.py" <<'PY'
import pathlib
import subprocess
import sys

import joblib
import torch

folder = pathlib.Path(sys.argv[1])
print("joblib", joblib.__version__, "torch", torch.__version__)
one, other = torch.arange(1000.0), torch.arange(1000.0)
assert torch.equal(one, other) and joblib.hash(one) != joblib.hash(other)
assert joblib.hash(one) == joblib.hash(one) and joblib.hash(one.numpy()) == joblib.hash(other.numpy())
for _ in range(3):
    subprocess.run([sys.executable, "-W", "ignore", folder / "features.py", folder], check=True)
calls = {name: len((folder / name).read_text()) for name in ("tensor", "array")}
entries = {name: len(list(folder.glob(f"cache/**/of_{name}/*/output.pkl"))) for name in ("tensor", "array")}
print("calls:", calls, "entries in the cache:", entries)
assert calls == entries == {"tensor": 3, "array": 1}
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
