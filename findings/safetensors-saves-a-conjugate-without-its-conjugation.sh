#!/bin/sh
# safetensors 0.8.0 with torch 2.13.0: `safetensors.torch` saves `x.conj()` as `x`.
#
# torch conjugates lazily: `x.conj()` shares the memory of `x` and has a bit that says "conjugated". Such a tensor is contiguous, and
# safetensors writes its memory without looking at the bit. So the imaginary parts are loaded with the wrong sign, without an error. torch.save
# and torch.distributed.checkpoint write the values. Call `resolve_conj()` before the save.
#
# Seen: 1-2j is loaded as 1+2j.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'safetensors==0.8.0'
cat > "$dir/try.py" <<'PY'
import io
import sys

import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

folder = sys.argv[1]
poles = torch.tensor([1 + 2j, 3 - 4j])
state = {"poles": poles.conj()}
print("safetensors", safetensors.__version__, "in memory", state["poles"], "contiguous:", state["poles"].is_contiguous())


def with_safetensors():
    safetensors.torch.save_file(state, folder + "/state.safetensors")
    return safetensors.torch.load_file(folder + "/state.safetensors")


def with_torch():
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def with_dcp():
    dcp.save(state, checkpoint_id=folder + "/dcp")
    found = {"poles": torch.zeros(2, dtype=torch.complex64)}
    dcp.load(found, checkpoint_id=folder + "/dcp")
    return found


for save, right in ((with_torch, True), (with_dcp, True), (with_safetensors, False)):
    found = save()["poles"]
    print(save.__name__, found)
    assert torch.equal(found, state["poles"] if right else poles)

resolved = {"poles": state["poles"].resolve_conj()}
assert torch.equal(safetensors.torch.load(safetensors.torch.save(resolved))["poles"], state["poles"])
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
