#!/bin/sh
# torch 2.13.0: `Optimizer.load_state_dict` replaces every string in the state of a parameter.
#
# It rebuilds each iterable of the state by `type(value)(item for item in value)`. A string is iterable, and `str` of a generator is
# its representation. So {"kind": "adam"} comes back as "<generator object Optimizer.load_state_dict...>", without a warning, also in
# nested dicts and lists. Bytes, numbers and tensors are right, and so are strings in `param_groups`.
#
# Seen: as said. An optimizer that keeps the name of its mode beside its moments takes another branch after a resume.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
cat > "$dir/try.py" <<'PY'
import torch


class WithMode(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "mode": "fast"})


weight = torch.nn.Parameter(torch.zeros(2))
first, second = WithMode([weight]), WithMode([weight])
first.state[weight] = {"kind": "adam", "deep": {"kind": "adam"}, "listed": ["adam", 1], "raw": b"adam", "m": torch.ones(2)}
second.load_state_dict(first.state_dict())
state = second.state[weight]
print({key: value for key, value in state.items() if key != "m"})
for text in (state["kind"], state["deep"]["kind"], state["listed"][0]):
    assert text.startswith("<generator object Optimizer.load_state_dict"), text
assert state["raw"] == b"adam" and state["listed"][1] == 1 and second.param_groups[0]["mode"] == "fast"
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
