#!/bin/sh
# bitsandbytes 0.50.2 with torch 2.13.0: a flattened optimizer state is saved without a word, and cannot be loaded.
#
# `torch.distributed.checkpoint` writes optimizer states flattened by parameter name when checkpoints have to load on another number of ranks
# (`flatten_optimizer_state_dict=True`). The optimizers of bitsandbytes, 32-bit AdamW included, give such a state. To set it ends in
# `AttributeError: 'dict' object has no attribute 'to'`. Without flattening the same optimizers continue bit for bit. The optimizers of torch
# load both forms.
#
# Seen: nested: True, flattened: 'dict' object has no attribute 'to'; torch: True, True.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install --no-deps 'bitsandbytes==0.50.2' packaging
cat > "$dir/try.py" <<'PY'
import copy

import bitsandbytes
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

torch.set_num_threads(1)


def step(model, optimizer, number):
    optimizer.zero_grad()
    model(torch.full((4, 8), float(number))).pow(2).sum().backward()
    optimizer.step()


def continues(kind, flat):
    """Whether a training that is resumed through such a state goes on bit for bit, or what loading it raises."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model = torch.nn.Linear(8, 8)
    optimizer = kind(model.parameters(), lr=1e-3)
    for number in range(3):
        step(model, optimizer, number)
    saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    other = copy.deepcopy(model)
    resumed = kind(other.parameters(), lr=1e-3)
    try:
        set_optimizer_state_dict(other, resumed, saved, options=options)
    except AttributeError as error:
        return str(error)
    for number in range(3, 6):
        step(model, optimizer, number)
        step(other, resumed, number)
    return all(map(torch.equal, model.parameters(), other.parameters()))


for kind in (bitsandbytes.optim.AdamW, bitsandbytes.optim.Lion8bit, torch.optim.AdamW):
    found = [continues(kind, flat) for flat in (False, True)]
    print(f"{kind.__module__}.{kind.__name__}: nested: {found[0]}, flattened: {found[1]}")
    of_torch = kind.__module__.startswith("torch.")
    assert found == [True, True if of_torch else "'dict' object has no attribute 'to'"]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
