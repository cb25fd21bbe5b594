#!/bin/sh
# safetensors 0.8.0 with jax 0.10.2 and ml_dtypes 0.6.0: `safetensors.flax` and `safetensors.numpy` save float8, but cannot load it.
#
# `save_file` writes a correct file. `load_file` and `safe_open` of the same module look for the dtype in NumPy, which has no float8, and
# raise AttributeError; that ml_dtypes is imported does not help. bfloat16 is found there. `load`, for bytes, raises KeyError for float8
# and also for the bfloat16 that `save` wrote. So a checkpoint can be written for weeks before a first load shows it. Nothing is lost: the
# bytes can be read by the header, as below.
#
# Seen: as said, for F8_E4M3 and F8_E5M2; the payload read by its offsets is equal to what was saved.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'safetensors==0.8.0' 'jax==0.10.2' 'ml_dtypes==0.6.0' numpy
cat > "$dir/try.py" <<'PY'
import json
import pathlib
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors.flax
import safetensors.numpy

FILE = pathlib.Path(sys.argv[1]) / "one.safetensors"


def tried(read):
    try:
        return str(read()["w"].dtype)
    except (AttributeError, KeyError) as error:
        return type(error).__name__


def by_header(dtype):
    raw = FILE.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])["w"]["data_offsets"]
    return np.frombuffer(raw[8 + length :][begin:end], dtype)


for name, loads in (("bfloat16", "bfloat16"), ("float8_e4m3fn", "AttributeError"), ("float8_e5m2", "AttributeError")):
    dtype = getattr(ml_dtypes, name)
    values = np.array([0.5, -1.0, 2.0, 0.0]).astype(dtype)
    for library, state in ((safetensors.flax, {"w": jnp.asarray(values)}), (safetensors.numpy, {"w": values})):
        library.save_file(state, FILE)
        found = tried(lambda: library.load_file(FILE)), tried(lambda: library.load(library.save(state)))
        print(f"{library.__name__}, {name}: load_file {found[0]}, load {found[1]}")
        assert found == (loads, "KeyError"), found
        assert by_header(dtype).tobytes() == values.tobytes()
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
