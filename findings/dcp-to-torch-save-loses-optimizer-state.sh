#!/bin/sh
# torch 2.13.0: an optimizer state that was converted by `dcp_to_torch_save` is accepted by `load_state_dict`, and ignored.
#
# `optimizer.state_dict()` numbers the parameters: its "state" has the keys 0, 1 and so on. `torch.distributed.checkpoint` stores each entry under
# a joined name such as "optimizer.state.0.exp_avg". `dcp_to_torch_save` makes nested dicts again from these names, with the keys "0", "1".
# `load_state_dict` finds no parameter named "0", keeps the entry aside and reports nothing. So the moments and step counts are lost: training
# continues with a fresh optimizer, at the right learning rate. `dcp.load` restores the state exactly, and the weights are right in both.
#
# Seen: keys 0 to 3 become "0" to "3". After the load no parameter has a state, and the next step differs from the one without a stop. With
# keys converted by `int` it is equal. A file that went through `torch_save_to_dcp` and back has lost its optimizer the same way.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
cat > "$dir/try.py" <<'PY'
import copy
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

torch.set_num_threads(1)
inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def states(model, optimizer):
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})


def continued(saved):
    model, optimizer = made()
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    with_state = sum(parameter in optimizer.state for parameter in model.parameters())
    train(model, optimizer, 1)
    return list(model.parameters()), with_state


model, optimizer = made()
train(model, optimizer, 5)
saved = states(model, optimizer)
train(model, optimizer, 1)

direct, converted, returned = (f"{sys.argv[1]}/{name}" for name in ("direct", "converted.pt", "returned"))
dcp.save(saved, checkpoint_id=direct)
dcp_to_torch_save(direct, converted)
torch.save(saved, f"{returned}.pt")
torch_save_to_dcp(f"{returned}.pt", returned)
dcp_to_torch_save(returned, f"{returned}-back.pt")
other = made()
train(*other, 1)
loaded = states(*other)
dcp.load(loaded, checkpoint_id=direct)
repaired = torch.load(converted)
repaired["optimizer"]["state"] = {int(key): value for key, value in repaired["optimizer"]["state"].items()}

print("torch", torch.__version__)
kinds = {"dcp.load": loaded, "dcp_to_torch_save": torch.load(converted), "to DCP and back": torch.load(f"{returned}-back.pt"), "int keys": repaired}
for name, found in kinds.items():
    parameters, with_state = continued(found)
    same = all(torch.equal(a, b) for a, b in zip(parameters, model.parameters()))
    weights = all(torch.equal(found["model"][key], value) for key, value in saved["model"].items())
    rate = found["optimizer"]["param_groups"][0]["lr"]
    print(
        f"{name}: keys {list(found['optimizer']['state'])}, parameters with a state {with_state} of 4,",
        f"weights right {weights}, rate {rate}, next step as without a stop: {same}",
    )
    exact = name in ("dcp.load", "int keys")
    assert weights and rate == 0.01 and same == exact and with_state == (4 if exact else 0)
    assert list(found["optimizer"]["state"]) == ([0, 1, 2, 3] if exact else ["0", "1", "2", "3"])
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
