#!/bin/sh
# orbax-checkpoint 0.12.8 with jax 0.10.2: a template of another shape is refused only if it consists of jax arrays.
#
# `StandardCheckpointer.restore(path, template)` compares the shape of each jax array in the template with the stored shape, and raises ValueError if
# they differ. With a NumPy array, or a `jax.ShapeDtypeStruct` without a sharding as `jax.eval_shape` returns it, it uses only the type of the
# elements, and returns an array of the stored shape. `StandardRestore` in a `CheckpointManager` does the same. So a restore with a wrong configuration
# succeeds, and a table of embeddings, a buffer or moments have another length than the program expects. Later, jax does not raise an error for an index
# outside of an array. A template of integers truncates: 0.5 is read as 0, also into jax arrays. Compare the shapes after the restore.
#
# Guess: ValueError for each kind of template.
# Seen, 2026-11-30: with 6 stored numbers, jax arrays of the shapes (3,), (9,) and (2, 3) raise ValueError. NumPy arrays and `ShapeDtypeStruct` of these
# shapes return 6 numbers.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'orbax-checkpoint==0.12.8' 'jax==0.10.2'
cat > "$dir/try.py" <<'PY'
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp

stored = np.arange(6, dtype=np.float32) + 0.5
checkpointer = ocp.StandardCheckpointer()
checkpointer.save(sys.argv[1] + "/standard", {"w": stored})
checkpointer.wait_until_finished()
manager = ocp.CheckpointManager(sys.argv[1] + "/manager")
manager.save(0, args=ocp.args.StandardSave({"w": stored}))
manager.wait_until_finished()


def from_manager(template):
    return manager.restore(0, args=ocp.args.StandardRestore(template))


def from_checkpointer(template):
    return checkpointer.restore(sys.argv[1] + "/standard", template)


def outcome(restore, leaf):
    try:
        return restore({"w": leaf})["w"]
    except ValueError as error:
        return error


print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__)
for restore in (from_checkpointer, from_manager):
    for shape in ((3,), (9,), (2, 3)):
        kinds = np.zeros, jax.ShapeDtypeStruct, jax.numpy.zeros
        numpy_array, structure, jax_array = (outcome(restore, kind(shape, np.float32)) for kind in kinds)
        print(restore.__name__, shape, "NumPy:", numpy_array.shape, "structure:", structure.shape, "jax:", type(jax_array).__name__)
        assert np.array_equal(numpy_array, stored) and np.array_equal(structure, stored)
        assert isinstance(jax_array, ValueError)
    truncated = [outcome(restore, kind(6, np.int32)) for kind in (np.zeros, jax.numpy.zeros)]
    print(restore.__name__, "template of int32:", truncated[0], truncated[1])
    assert all(np.array_equal(array, range(6)) for array in truncated)
manager.close()
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
