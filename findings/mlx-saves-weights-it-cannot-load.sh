#!/bin/sh
# mlx 0.32.4: a model with layers in a dict under numbers as text is saved without an error, and cannot be loaded.
#
# `save_weights` joins the names, as in "experts.0.weight", and `load_weights` makes trees of them again. A part that is a number becomes a
# position in a list, also where the model has a dict. So the load into the same model ends in `KeyError: 0`, with `strict=False` too. The
# state of an optimizer that was saved by `tree_flatten`, as the documentation shows, becomes lists in the same way, and the next `update`
# raises TypeError. `tree_unflatten` fills missing positions with empty dicts, so the keys "3" and "7" become a list of eight. Dicts with
# other keys and real lists load. The file has all values: rename the keys to load it.
#
# Guess: a model loads its own weights, and `tree_unflatten` undoes `tree_flatten`.
# Seen, 2026-11-29: keys "a" and "b" load; with "0" and "1", and with "3" and "7", `load_weights` raises KeyError and the resumed optimizer
# TypeError.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mlx[cpu]==0.32.4'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys

import mlx.core as mx
from mlx import nn, optimizers
from mlx.utils import tree_flatten, tree_unflatten

weights, state = f"{sys.argv[1]}/weights.safetensors", f"{sys.argv[1]}/state.safetensors"


class Model(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.experts = {name: nn.Linear(2, 2) for name in names}

    def __call__(self, inputs):
        return sum(expert(inputs) for expert in self.experts.values())


def loss(model):
    return model(mx.ones((1, 2))).square().mean()


def outcome(function, *args, **how):
    try:
        function(*args, **how)
    except (KeyError, TypeError) as error:
        return type(error).__name__
    return "loaded"


def tried(names):
    model, optimizer = Model(names), optimizers.Adam(learning_rate=0.01)
    _, gradients = nn.value_and_grad(model, loss)(model)
    optimizer.update(model, gradients)
    model.save_weights(weights)
    mx.save_safetensors(state, dict(tree_flatten(optimizer.state)))

    resumed = optimizers.Adam(learning_rate=0.01)
    resumed.state = tree_unflatten(list(mx.load(state).items()))
    return (
        outcome(Model(names).load_weights, weights),
        outcome(Model(names).load_weights, weights, strict=False),
        outcome(resumed.update, model, gradients),
    )


print("mlx", importlib.metadata.version("mlx"))
for names in (("a", "b"), ("0", "1"), ("3", "7")):
    found = tried(names)
    print(names, "weights:", found[0], "not strict:", found[1], "optimizer:", found[2], "values in the file:", len(mx.load(weights)))
    assert found == (("loaded",) * 3 if names[0] == "a" else ("KeyError", "KeyError", "TypeError"))
tree = tree_unflatten(tree_flatten({"experts": {"3": 1, "7": 2}}))
print("unflattened:", tree)
assert tree == {"experts": [{}, {}, {}, 1, {}, {}, {}, 2]}
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
