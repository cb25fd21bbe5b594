#!/bin/sh
# torch 2.13.0: `torch.distributed.checkpoint.load` leaves a module or an optimizer in a nested dict or list as it is.
#
# `dcp.save({"model": model})` calls `model.state_dict()`, and `dcp.load` loads it into the model. One level deeper, as in
# `{"training": {"model": model}}` or `{"models": [model]}`, the whole object is pickled, and the load puts another object in its place in the
# dict. The model that the program trains keeps its weights, and the optimizer its learning rate, without an error or a warning. Pass
# `model.state_dict()` in a nested dict.
#
# Seen: 1.0 was saved. The model at the top has 1.0 after the load, the nested ones keep 2.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
cat > "$dir/try.py" <<'PY'
import os
import tempfile

import torch
import torch.distributed.checkpoint as dcp


def made(value):
    model = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(model.weight, value)
    return model, torch.optim.AdamW(model.parameters(), lr=value)


def loaded(arrange):
    folder = tempfile.mkdtemp(dir=os.environ["DIR"])
    dcp.save(arrange(*made(1.0)), checkpoint_id=folder)
    model, optimizer = made(2.0)
    state = arrange(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    names = sorted(dcp.FileSystemReader(folder).read_metadata().state_dict_metadata)
    print("saved", names[:3], "loaded: weight", model.weight.item(), "learning rate", optimizer.param_groups[0]["lr"])
    return model.weight.item(), optimizer.param_groups[0]["lr"]


print("torch", torch.__version__)
assert loaded(lambda model, optimizer: {"model": model, "optimizer": optimizer}) == (1.0, 1.0)
assert loaded(lambda model, optimizer: {"training": {"model": model, "optimizer": optimizer}}) == (2.0, 2.0)
assert loaded(lambda model, optimizer: {"models": [model], "optimizers": [optimizer]}) == (2.0, 2.0)
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
