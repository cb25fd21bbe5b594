#!/bin/sh
# flax 0.12.8 with jax 0.10.2: a state from `nnx.state` or `nnx.split` changes while the model trains, so that it cannot undo a step.
#
# JAX arrays never change, and a state of Flax is a tree of arrays. But the leaves of a state are the `Variable` objects of the model
# itself, and `Optimizer.update` writes the new weights into them, also inside `nnx.jit`. So the state that was set aside as the best one,
# or to return to after a NaN, always contains the newest weights. `nnx.update(model, best)` then does nothing, without an error. The same
# holds for the state of the optimizer. Copy the state with `jax.tree.map(lambda leaf: leaf, state)` or `copy.deepcopy`.
# `nnx.to_pure_dict` is also safe.
#
# Guess: the state is a copy that never changes, since in JAX training makes new trees.
# Seen, 2026-11-30: after one step `nnx.update` with the state, or with a split, restores nothing, and the step count in the saved state
# of the optimizer is 1 instead of 0. All three copies restore the weights.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'flax==0.12.8' 'jax==0.10.2' 'optax==0.2.8' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import copy

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


def step(model, optimizer):
    optimizer.update(model, nnx.grad(lambda model: (model(jnp.ones((1, 2))) ** 2).sum())(model))


def restores(snapshot, step):
    """Whether a snapshot from before a step restores the weights after it, and the step count in the optimizer's snapshot."""
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    before = np.array(model.kernel[...])
    best, moments = snapshot(model), snapshot(optimizer)
    step(model, optimizer)
    assert not np.array_equal(model.kernel[...], before)
    nnx.update(model, best)
    nnx.update(optimizer, moments)
    return np.array_equal(model.kernel[...], before), int(optimizer.step[...])


shared = {"nnx.state": nnx.state, "nnx.split": lambda node: nnx.split(node)[1]}
copies = {
    "tree.map": lambda node: jax.tree.map(lambda leaf: leaf, nnx.state(node)),
    "deepcopy": lambda node: copy.deepcopy(nnx.state(node)),
    "to_pure_dict": lambda node: nnx.to_pure_dict(nnx.state(node)),
}
print("flax", flax.__version__, "jax", jax.__version__)
for how, train in (("plain", step), ("nnx.jit", nnx.jit(step))):
    for name, snapshot in (shared | copies).items():
        seen = restores(snapshot, train)
        print(f"{how} step, {name}: weights restored {seen[0]}, step count after the rollback {seen[1]}")
        assert seen == ((True, 0) if name in copies else (False, 1))
PY
JAX_PLATFORMS=cpu "$dir/venv/bin/python" -W ignore "$dir/try.py"
