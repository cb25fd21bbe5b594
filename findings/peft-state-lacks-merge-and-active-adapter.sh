#!/bin/sh
# peft 0.21.2 with torch 2.13.0: a state saved while adapters are merged applies the update of the adapter twice after a load.
#
# `merge_adapter()` adds the update of an adapter to the base weight, for example to generate faster. The state dict then contains the changed
# base weight and also the two factors, and does not record that they are merged. So a new model that loads it adds the update again, without
# a warning. The state dict does not contain the active adapter either: after `set_adapter("second")` and a load into a new model, the adapter
# that was created first is active, so that the model computes with another adapter and trains it. Call `unmerge_adapter()` before each save,
# and `set_adapter` after each load.
#
# Guess: `state_dict` contains the base weight without the update, and the name of the active adapter.
# Seen, 2026-11-30: "saved while merged: the update is applied twice"; after the second load, `default` is active.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'peft==0.21.2' numpy
cat > "$dir/try.py" <<'PY'
import importlib.metadata

import peft
import torch

torch.manual_seed(0)
inputs = torch.randn(4, 8)
config = peft.LoraConfig(target_modules=["0"], r=2, init_lora_weights=False)


def made():
    torch.manual_seed(1)
    model = peft.get_peft_model(torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False)), config)
    model.add_adapter("second", config)
    return model


print("peft", importlib.metadata.version("peft"))
with torch.no_grad():
    trained = made()
    right = trained(inputs)
    trained.merge_adapter()
    assert torch.allclose(trained(inputs), right, atol=1e-5)
    loaded = made()
    print(loaded.load_state_dict(trained.state_dict()))
    layer = trained.base_model.model[0]
    update = layer.get_delta_weight("default")
    base = layer.weight - update
    assert torch.allclose(loaded(inputs), inputs @ (base + 2 * update).T, atol=1e-5)
    print("saved while merged: the update is applied twice")
    trained.unmerge_adapter()
    trained.set_adapter("second")
    right = trained(inputs)
    loaded = made()
    print(loaded.load_state_dict(trained.state_dict()))
    print("saved with the second adapter active:", loaded.active_adapter, "is active")
    assert not torch.allclose(loaded(inputs), right, atol=1e-5)
    loaded.set_adapter("second")
    assert torch.allclose(loaded(inputs), right, atol=1e-5)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
