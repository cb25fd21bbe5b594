#!/bin/sh
# torch 2.13.0 with apollo-torch 1.0.3: `torch.distributed.checkpoint` restores nothing but the seed of an APOLLO optimizer.
#
# A load fills the state that the new optimizer has. `get_state_dict` creates it for an optimizer without any state. APOLLO sets one entry
# per parameter, its seed, when it is created, so `get_state_dict` regards the state as complete, and `dcp.load` reads only the seed. The
# moments, the projection and the step count remain unread in the checkpoint. There is no error and no warning, and the resumed run
# begins with step 1. `optimizer.load_state_dict` restores everything, and so does the same load for AdamW. Make one step with the new
# optimizer before you call `get_state_dict` for the load.
#
# Guess: the load restores the whole state, or reports the entries of the checkpoint that it does not use.
# Seen, 2026-11-30: the checkpoint has six entries for the weight at step 7. After the load the optimizer has the seed, and the next step
# is 1. After a step before the load the next one is 8, and the weights are equal to those of the run without a resume.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'apollo-torch==1.0.3' 'transformers==5.24.0' 'bitsandbytes==0.50.2'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import logging
import sys
import warnings

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it lacks an optional package
import torch
import torch.distributed.checkpoint as dcp
from apollo_torch import APOLLOAdamW
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

torch.set_num_threads(1)


def apollo(weight):
    low_rank = {"rank": 2, "proj": "random", "proj_type": "std", "scale_type": "channel", "scale": 1, "update_proj_gap": 5}
    return APOLLOAdamW([{"params": [weight], **low_rank}], lr=0.01)


def adamw(weight):
    return torch.optim.AdamW([weight], lr=0.01)


def made(kind):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8, bias=False)
    return model, kind(model.weight)


def step(model, optimizer, seed):
    torch.manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()


def states(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))


def resumed(kind, step_first=False):
    """The entries of the checkpoint and of the loaded optimizer, the number of the next step, and whether its weights are right."""
    model, optimizer = made(kind)
    for seed in range(7):
        step(model, optimizer, seed)
    folder = f"{sys.argv[1]}/{kind.__name__}{step_first}"
    dcp.save(states(model, optimizer), checkpoint_id=folder)
    saved = sorted(optimizer.state[model.weight])
    step(model, optimizer, 7)
    right = model.weight.detach().clone()

    model, optimizer = made(kind)
    if step_first:
        step(model, optimizer, 99)
    loaded = states(model, optimizer)
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    state = optimizer.state[model.weight]
    entries = sorted(state)
    step(model, optimizer, 7)
    return saved, entries, int(state["step"]), torch.equal(model.weight, right)


print("torch", torch.__version__, "apollo-torch", importlib.metadata.version("apollo-torch"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    seen = {(kind, first): resumed(kind, first) for kind, first in ((apollo, False), (apollo, True), (adamw, False))}
others = {str(one.message) for one in caught if "single process" not in str(one.message)}
for (kind, first), (saved, entries, count, equal) in seen.items():
    name = kind.__name__ + ", a step before the load" * first
    print(f"{name}: saved {saved}, loaded {entries}, next step {count}, right weights: {equal}")
print("other warnings:", others)
assert not others
assert len(seen[apollo, False][0]) == 6
assert seen[apollo, False][1:] == (["seed"], 1, False)
assert seen[apollo, True][1:] == (seen[apollo, True][0], 8, True)
assert seen[adamw, False][1:] == (seen[adamw, False][0], 8, True)
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
