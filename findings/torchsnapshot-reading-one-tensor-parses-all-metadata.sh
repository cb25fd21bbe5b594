#!/bin/sh
# torchsnapshot 0.1.0: `Snapshot.read_object`, which reads one tensor of a snapshot, parses the metadata of all tensors again in each call.
#
# The snapshot object keeps nothing between two calls. So a program that reads each of N tensors through `read_object`, as the documentation
# suggests for access without loading the whole snapshot, does work in proportion to N squared.
#
# Seen: the second and the third read of a snapshot of 10 tensors make 3260 and 3249 function calls each, of 100 tensors 16850, of 1000 tensors
# 152728 and 152789.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'torchsnapshot==0.1.0' 'setuptools<81'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys

import torch
from torchsnapshot import Snapshot, StateDict


def calls(act):
    """Return how many functions of Python or C an act calls."""
    count = 0

    def count_call(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


print("torchsnapshot", importlib.metadata.version("torchsnapshot"), "torch", torch.__version__)
found = {}
for count in (10, 100, 1000):
    state = StateDict(**{f"w{i}": torch.full((3,), float(i)) for i in range(count)})
    snapshot = Snapshot.take(f"{sys.argv[1]}/{count}", {"model": state})
    snapshot.read_object("0/model/w1")
    found[count] = [calls(lambda name=name: snapshot.read_object(f"0/model/{name}")) for name in ("w2", "w3")]
print("calls of the second and the third read:", found)
assert all(abs(one - other) < 0.05 * one for one, other in found.values()), "a later read is cheaper"
assert found[100][0] > 4 * found[10][0]
assert found[1000][0] > 7 * found[100][0]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" 2>/dev/null
