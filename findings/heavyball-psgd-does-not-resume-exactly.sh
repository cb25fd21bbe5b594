#!/bin/sh
# heavyball 3.2.1 with torch 2.13.0: PSGDKron and LATHER do not continue exactly from their own state_dict.
#
# They keep a step counter and lower bounds in float64 beside float32 parameters. `load_state_dict` of torch converts all floating
# state to the dtype of its parameter, except entries named "step", so these become float32. Other optimizers of the library (SOAP)
# keep float32 and are exact. No warning is given.
#
# Seen: after 7 steps, a load and 60 more steps the weights differ for both, while two runs without a load are bitwise equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'heavyball==3.2.1'
cat > "$dir/try.py" <<'PY'
import heavyball
import torch

heavyball.utils.compile_mode = None
torch.set_num_threads(1)


def made(kind):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    return model, kind(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    for step in steps:
        drawn = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        (model(torch.randn(16, 8, generator=drawn)) - torch.randn(16, 4, generator=drawn)).square().mean().backward()
        torch.manual_seed(step)
        optimizer.step()


def dtypes(optimizer):
    found = set()

    def look(value):
        if torch.is_tensor(value):
            found.add(value.dtype)
        elif isinstance(value, dict | list | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                look(item)

    look(optimizer.state_dict()["state"])
    return found


def differ(kind, loads):
    one, two = made(kind), made(kind)
    train(*one, range(7))
    if loads:
        two[0].load_state_dict(one[0].state_dict())
        two[1].load_state_dict(one[1].state_dict())
        print(kind.__name__, sorted(map(str, dtypes(one[1]))), "become", sorted(map(str, dtypes(two[1]))))
    else:
        train(*two, range(7))
    for model, optimizer in (one, two):
        train(model, optimizer, range(7, 67))
    return max(float((a - b).detach().abs().max()) for a, b in zip(one[0].parameters(), two[0].parameters()))


for kind, exact in ((heavyball.PSGDKron, False), (heavyball.LATHER, False), (heavyball.SOAP, True)):
    twin, resumed = differ(kind, False), differ(kind, True)
    print(kind.__name__, "without a load:", twin, "with a load:", resumed)
    assert twin == 0 and (resumed == 0) == exact
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
