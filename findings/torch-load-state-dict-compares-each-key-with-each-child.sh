#!/bin/sh
# torch 2.13.0: the time of `Module.load_state_dict` grows with the square of the number of children of one module.
#
# For each child, all keys of the parent are filtered by the prefix of the child. So a list of 1,000 layers with 2 tensors each makes two
# million comparisons of strings, and 10,000 layers took 14.8 s of processor time where 5,000 took 3.5 s. Each layer of a model with a
# few levels is fast, but not a list of all experts or adapters. `state_dict`, and `load_state_dict` of an optimizer, grow in proportion.
#
# Seen: 250 layers 125000 comparisons, 500 layers 500000, 1000 layers 2000000; state_dict() makes 4 times as many calls for 4 times the layers.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
cat > "$dir/try.py" <<'PY'
import sys

import torch


def calls(act, name=None):
    """Return how many calls of C functions an act makes, or how many with this name in a comprehension."""
    count = 0

    def count_call(frame, event, function):
        nonlocal count
        if event == "c_call":
            count += name is None or (function.__name__ == name and frame.f_code.co_name in ("<dictcomp>", "load"))

    sys.setprofile(count_call)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def layers(count):
    return torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(count))


print("torch", torch.__version__)
compared, listed = {}, {}
for count in (250, 500, 1000):
    model = layers(count)
    state = model.state_dict()
    compared[count] = calls(lambda: model.load_state_dict(state), "startswith")
    listed[count] = calls(model.state_dict)
print("comparisons:", compared, "| calls of state_dict():", listed)
assert compared == {count: 2 * count * count for count in compared}
assert listed[1000] < 4.2 * listed[250]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
