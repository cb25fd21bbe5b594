#!/bin/sh
# safetensors 0.8.0 with jax 0.10.2 and numpy 2.4.6: `safetensors.flax` loads an int64 tensor as int32, and turns 2^40 + 5 into 5 without a warning.
#
# jax has only 32-bit numbers, unless `jax_enable_x64` is set. `jax.numpy.asarray` then converts an int64 array of NumPy without a warning: a number loses its upper 32 bits.
# jax warns only if a 64-bit type is asked for by name. `safetensors.flax.load` and `load_file` pass arrays of NumPy.
# So token counts, sample ids, seeds and times of a checkpoint change, and a save of the loaded state makes the change permanent. float64 is rounded to float32. Set `jax_enable_x64`, or load with `safetensors.numpy`.
#
# Guess: an int64 tensor whose numbers do not fit into int32 is refused, or at least a warning is given, as for `jax.numpy.zeros(2, dtype="int64")`.
# Seen, 2026-11-30: 2^40 + 5 is loaded as 5, 3 * 10^9 as -1294967296, uint64 2^33 + 1 as 1, and float64 16777217 as 16777216. With `jax_enable_x64` all are right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'safetensors==0.8.0' 'jax==0.10.2' 'flax==0.12.8' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors.flax import load_file as load_jax
from safetensors.flax import save_file as save_jax
from safetensors.numpy import load_file, save_file

path = sys.argv[1] + "/state.safetensors"
state = {
    "tokens": np.array([2**40 + 5, 3 * 10**9, 7], dtype=np.int64),
    "seed": np.array([2**33 + 1], dtype=np.uint64),
    "time": np.array([16777217.0]),
}
save_file(state, path)
wide = len(sys.argv) > 2
jax.config.update("jax_enable_x64", wide)
print("safetensors", safetensors.__version__, "jax", jax.__version__, "jax_enable_x64:", wide)
with warnings.catch_warnings():
    warnings.simplefilter("error")
    loaded = load_jax(path)
    found = {name: value.tolist() for name, value in loaded.items()}
print({name: str(value.dtype) for name, value in loaded.items()}, found)
if wide:
    assert found == {name: value.tolist() for name, value in state.items()}
else:
    assert found == {"tokens": [5, -1294967296, 7], "seed": [1], "time": [16777216.0]}
    save_jax(loaded, path)
    again = load_file(path)["tokens"]
    print("saved again:", again, again.dtype)
    assert again.tolist() == [5, -1294967296, 7]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        jnp.zeros(2, dtype="int64")
    print("jax warns for a type by name:", str(caught[0].message)[:70])
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
"$dir/venv/bin/python" "$dir/try.py" "$dir" wide
