#!/bin/sh
# torch 2.13.0: `torch.distributed.checkpoint.load` does not restore numbers and strings in a dict that has integer keys.
#
# Such a dict holds positions by worker, losses by epoch or milestones of a scheduler. Names in the checkpoint are strings, so the saved value
# is put into the dict under "0" beside the old one under 0. The program reads 0 and continues with the value that it had before the load, without
# an error or a warning. Tensors with integer keys are restored, since they are read into the existing tensor, and so is everything with
# string keys. Only a later save of the same dict raises an error, because it now has both keys. Give such dicts string keys.
#
# Seen: positions 512 and 498 were saved. After the load 0 and 1 have 0, and "0" and "1" have the saved values. An object with `state_dict` gets
# the same two versions.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
cat > "$dir/try.py" <<'PY'
import logging
import sys

import torch
import torch.distributed.checkpoint as dcp

logging.disable(logging.ERROR)
torch.set_num_threads(1)
folder = sys.argv[1]


class Reader:
    def __init__(self, first, second):
        self.positions = {0: first, 1: second}

    def state_dict(self):
        return {"positions": dict(self.positions)}

    def load_state_dict(self, state):
        self.positions = state["positions"]


def state(first, second):
    return {
        "positions": {0: first, 1: second},
        "by name": {"worker0": first, "worker1": second},
        "tensors": {0: torch.tensor(first), 1: torch.tensor(second)},
        "reader": Reader(first, second),
    }


print("torch", torch.__version__)
dcp.save(state(512, 498), checkpoint_id=f"{folder}/first")
loaded = state(0, 0)
dcp.load(loaded, checkpoint_id=f"{folder}/first")
print("integer keys, numbers:", loaded["positions"])
print("string keys, numbers: ", loaded["by name"])
print("integer keys, tensors:", {key: int(value) for key, value in loaded["tensors"].items()})
print("an object with state_dict:", loaded["reader"].positions)
both = {0: 0, 1: 0, "0": 512, "1": 498}
assert loaded["positions"] == both and loaded["reader"].positions == both
assert loaded["by name"] == {"worker0": 512, "worker1": 498}
assert {key: int(value) for key, value in loaded["tensors"].items()} == {0: 512, 1: 498}

try:
    dcp.save({"positions": loaded["positions"]}, checkpoint_id=f"{folder}/second")
except dcp.CheckpointException as error:
    (problem, _), = error.failures.values()
    print("the next save:", repr(problem))
    assert "duplicated" in str(problem)
else:
    raise AssertionError("the second save was accepted")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
