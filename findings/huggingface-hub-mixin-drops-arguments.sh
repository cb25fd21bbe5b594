#!/bin/sh
# huggingface_hub 2.4.0 with torch 2.13.0: a model saved with `PyTorchModelHubMixin` reloads with default arguments and random weights.
#
# The mixin writes the arguments of `__init__` to `config.json` and passes them to `__init__` in `from_pretrained`. Arguments that JSON
# cannot hold, such as an activation function or a dtype, are left out of the file without a warning, and the reloaded model has their default values.
# All weights match, so its outputs are wrong without a sign. The keys of a dict become strings and a tuple becomes a list. Also, `from_pretrained` is not strict by
# default: if a layer was renamed, the saved weights are ignored and the layer keeps its random initial ones, without an error or a warning.
# Pass `coders` to the class for other types, and `strict=True` to each load.
#
# Guess: `save_pretrained` refuses an argument that it cannot store, and `from_pretrained` refuses weights that do not fit.
# Seen, 2026-11-29: tanh is reloaded as relu and float64 as float32; of a renamed layer two loads give two different weights; with `strict=True` it raises
# an error.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'huggingface_hub==2.4.0' safetensors
cat > "$dir/try.py" <<'PY'
import json
import sys
import warnings

import huggingface_hub
import torch
from huggingface_hub import PyTorchModelHubMixin

folder = sys.argv[1]


class Model(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self, scale=1.0, activation=torch.relu, dtype=torch.float32, names=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, dtype=dtype)
        self.scale, self.activation, self.names = scale, activation, names

    def forward(self, inputs):
        return self.activation(self.layer(inputs.to(self.layer.weight.dtype))) * self.scale


class Renamed(torch.nn.Module, PyTorchModelHubMixin):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)


print("huggingface_hub", huggingface_hub.__version__)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    model = Model(scale=3.0, activation=torch.tanh, dtype=torch.float64, names={1: "one"})
    model.save_pretrained(f"{folder}/model")
    again = Model.from_pretrained(f"{folder}/model")
with open(f"{folder}/model/config.json") as file:
    config = json.load(file)
inputs = torch.randn(8, 4)
difference = (model(inputs) - again(inputs)).abs().max().item()
print("config:", config, "warnings:", len(warned), "outputs differ by", difference)
print("activation", again.activation.__name__, "dtype", again.layer.weight.dtype, "names", again.names)
assert not warned and set(config) == {"scale", "names"}
assert (again.scale, again.activation, again.names) == (3.0, torch.relu, {"1": "one"})
assert again.layer.weight.dtype == torch.float32 and torch.equal(again.layer.weight, model.layer.weight.float()) and difference > 0.1

one, other = (Renamed.from_pretrained(f"{folder}/model").linear.weight for _ in range(2))
print("renamed layer: two loads are equal:", torch.equal(one, other))
assert not torch.equal(one, other)
try:
    Renamed.from_pretrained(f"{folder}/model", strict=True)
except RuntimeError as error:
    print("strict=True:", str(error).splitlines()[0])
else:
    raise AssertionError("the strict load accepted other names")
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
