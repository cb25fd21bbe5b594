#!/bin/sh
# flax 0.12.8 with jax 0.10.2 and numpy 2.4.6: `flax.serialization` saves a big-endian array, and reads its bytes as little-endian numbers.
#
# `to_bytes` and `msgpack_serialize` write the name of the type, such as float32, and the bytes of the array. The name does not contain the byte order,
# and the bytes are not swapped. So a big-endian array, as `numpy.frombuffer` with ">f4" and readers of FITS, IDX or netCDF-3 files return it,
# is loaded as other numbers, without an error. Statistics of a data set and weights that were converted from such files are examples. jax
# itself refuses such an array. `numpy.save` keeps the byte order, and safetensors swaps the bytes. Save `array.astype(array.dtype.newbyteorder("="))`.
#
# Guess: the values are equal after a load.
# Seen, 2026-11-30: 1.0 of type float32 is loaded as 4.6e-41, and 1 of type int64 as 72057594037927936. Fortran order and slices are loaded
# correctly. numpy and safetensors return equal values.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'flax==0.12.8' 'jax==0.10.2' 'numpy==2.4.6' 'safetensors==0.8.0'
cat > "$dir/try.py" <<'PY'
import io

import flax
import jax
import numpy
import safetensors.numpy
from flax import serialization


def by_flax(array):
    return serialization.from_bytes({"w": numpy.zeros_like(array)}, serialization.to_bytes({"w": array}))["w"]


def by_msgpack(array):
    return serialization.msgpack_restore(serialization.msgpack_serialize({"w": array}))["w"]


def by_numpy(array):
    file = io.BytesIO()
    numpy.save(file, array)
    file.seek(0)
    return numpy.load(file)


def by_safetensors(array):
    return safetensors.numpy.load(safetensors.numpy.save({"w": array}))["w"]


print("flax", flax.__version__, "jax", jax.__version__, "numpy", numpy.__version__)
for kind, wrong in ((">f4", 4.6006e-41), (">i8", 2**56), (">f8", 3.03865e-319)):
    array = numpy.ones(3, kind)
    found = {read.__name__: read(array) for read in (by_flax, by_msgpack, by_numpy, by_safetensors)}
    print(kind, {name: value[0].item() for name, value in found.items()})
    assert numpy.allclose([found["by_flax"], found["by_msgpack"]], wrong, rtol=1e-4, atol=0.0)
    assert numpy.array_equal(found["by_numpy"], array) and numpy.array_equal(found["by_safetensors"], array)
for array in (numpy.ones(3), numpy.arange(6.0).reshape(2, 3).T, numpy.arange(6.0)[::2]):
    assert numpy.array_equal(by_flax(array), array) and numpy.array_equal(by_msgpack(array), array)
try:
    jax.numpy.asarray(numpy.ones(3, ">f4"))
except TypeError as error:
    print("jax:", type(error).__name__)
else:
    raise SystemExit("jax takes a big-endian array")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
