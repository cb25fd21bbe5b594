#!/bin/sh
# equinox 0.13.8 with jax 0.10.2: a saved 0.5 is read as 0 if the model of the code has an integer in that place.
#
# `tree_deserialise_leaves` reads leaves into a model that the code builds. An array of another dtype raises an error. A Python number is
# converted to the type of the number in that model, without a warning. So a field that the code writes as `scale: float = 1`, and that a
# schedule later sets to 0.5, is saved as 0.5 and read as 0. A bool is read as 0 or 1, and an integer as True. Write 1.0, or use an array.
#
# Guess: another type raises an error, as another dtype does.
# Seen, 2026-11-29: 0.5 is read as 0, 5.75 as 5, 3 as True, and nothing is raised. The file contains 0.5. A float32 array for an int32
# array raises RuntimeError.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'jax[cpu]==0.10.2' 'equinox==0.13.8'
cat > "$dir/try.py" <<'PY'
import sys

import equinox
import jax
import jax.numpy as jnp
import numpy

FILE = sys.argv[1] + "/model.eqx"


class Model(equinox.Module):
    weight: jax.Array
    scale: float = 1

    def __call__(self, inputs):
        return self.scale * self.weight * inputs


print("equinox", equinox.__version__)
trained = equinox.tree_at(lambda model: model.scale, Model(jnp.ones(2)), 0.5)
equinox.tree_serialise_leaves(FILE, trained)
loaded = equinox.tree_deserialise_leaves(FILE, Model(jnp.zeros(2)))
with open(FILE, "rb") as file:
    stored = [numpy.load(file).tolist(), numpy.load(file).tolist()]
print("saved", trained.scale, "file", stored, "loaded", loaded.scale, "outputs", trained(2.0), loaded(2.0))
assert stored == [[1.0, 1.0], 0.5]
assert loaded.scale == 0
assert loaded(2.0).tolist() == [0.0, 0.0]
for saved, like, read in ((5.75, 0, 5), (3, False, True), (True, 0, 1), (0.5, 1.0, 0.5)):
    equinox.tree_serialise_leaves(FILE, saved)
    found = equinox.tree_deserialise_leaves(FILE, like)
    print("saved", saved, "like", like, "loaded", found)
    assert type(found) is type(read)
    assert found == read
equinox.tree_serialise_leaves(FILE, jnp.ones(2, "float32"))
try:
    equinox.tree_deserialise_leaves(FILE, jnp.ones(2, "int32"))
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0])
else:
    raise SystemExit("an array of another dtype was loaded")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
