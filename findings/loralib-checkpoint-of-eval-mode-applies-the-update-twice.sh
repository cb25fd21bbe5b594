#!/bin/sh
# loralib 0.1.2 with torch 2.13.0: a state saved in eval mode and loaded in train mode applies the low-rank update twice.
#
# `eval()` adds the update of a LoRA layer to its weight, and `train()` subtracts it. The state dict contains the weight with the update added
# and also the two factors, and does not record which mode it was saved in. So a save after a validation, loaded into a new model, which is in
# train mode, gives a model that adds the update again, without a warning. `eval()` does not correct this: it adds the update to the weight
# once more. In the other direction, saved in train mode and loaded in eval mode, the update is not applied. Call `train()` before each save and
# each load.
#
# Guess: `state_dict` contains the same values in both modes, or the load restores the mode.
# Seen, 2026-11-29: outputs agree if both modes are the same. From eval to train they differ by W + 2BA, from train to eval by W.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install --no-deps 'loralib==0.1.2'
cat > "$dir/try.py" <<'PY'
import copy
import importlib.metadata

import loralib
import torch

torch.manual_seed(0)
inputs = torch.randn(4, 8)
trained = loralib.Linear(8, 8, r=2, bias=False)
with torch.no_grad():
    trained.lora_B.normal_()
    base = trained.weight.clone()
    update = trained.lora_B @ trained.lora_A * trained.scaling


def factor(output):
    """How often the output contains the update: 0, 1 or 2."""
    for times in (0, 1, 2):
        if torch.allclose(output, inputs @ (base + times * update).T, atol=1e-4):
            return times
    raise AssertionError("another output")


print("loralib", importlib.metadata.version("loralib"))
found = {}
with torch.no_grad():
    for saved in ("train", "eval"):
        trained.train(saved == "train")
        assert factor(trained(inputs)) == 1
        state = copy.deepcopy(trained.state_dict())
        for loaded in ("train", "eval"):
            model = loralib.Linear(8, 8, r=2, bias=False)
            model.train(loaded == "train")
            print(f"saved in {saved}, loaded in {loaded}:", model.load_state_dict(state), end=" ")
            once = factor(model(inputs))
            model.eval()
            found[saved, loaded] = once, factor(model(inputs))
            print("the update is applied", found[saved, loaded][0], "times, and in eval mode", found[saved, loaded][1])
assert found == {("train", "train"): (1, 1), ("train", "eval"): (0, 0), ("eval", "train"): (2, 2), ("eval", "eval"): (1, 1)}
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
