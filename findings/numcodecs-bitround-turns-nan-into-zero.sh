#!/bin/sh
# numcodecs 0.16.6 with torch 2.13.0: `BitRound` turns the NaNs that torch writes in bfloat16 into 0.0.
#
# `BitRound` rounds the mantissa of floats, so that checkpoints and other arrays of zarr compress better. It adds half of the last kept bit to
# the bits of the number, also if it is a NaN. On x86 CPUs with AVX2 torch converts a NaN to bfloat16 as 0xFFFF, which is 0xFFFF0000 in float32.
# The addition overflows all bits, and the result is 0x00000000. So with up to 6 kept bits the weights of a diverged run are zeros after they are
# read, `isnan` finds nothing, and there is no warning. NaNs of NumPy (0x7FC00000) remain NaN. Finite values above the largest rounded number
# become infinity. Check for NaN before the write, or replace each one by `numpy.nan`.
#
# Guess: rounding keeps NaN, and changes finite numbers only.
# Seen, 2026-11-29: 7 kept bits return nan, and 6, 3 and 1 return 0.0. A NaN of NumPy returns nan with all four.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'numcodecs==0.16.6' 'zarr==3.1.6'
cat > "$dir/try.py" <<'PY'
import sys

import numcodecs
import numpy
import torch
import zarr
from numcodecs.zarr3 import BitRound

diverged = (torch.ones(16) * float("nan")).to(torch.bfloat16).float().numpy()
if diverged.view("uint32")[0] != 0xFFFF0000:  # another CPU
    diverged = numpy.full(16, 0xFFFF0000, "uint32").view("float32")
ordinary = numpy.full(16, numpy.nan, "float32")
print("numcodecs", numcodecs.__version__, "torch", torch.__version__, "zarr", zarr.__version__)
print("bits of torch:", hex(diverged.view("uint32")[0]), "bits of numpy:", hex(ordinary.view("uint32")[0]))
assert numpy.isnan(diverged).all()
for bits in (7, 6, 3, 1):
    codec = numcodecs.BitRound(keepbits=bits)
    read = [codec.decode(codec.encode(values.copy())) for values in (diverged, ordinary)]
    print(bits, "bits: torch", read[0][0], "numpy", read[1][0])
    assert numpy.isnan(read[1]).all()
    assert numpy.isnan(read[0]).all() if bits == 7 else not read[0].any()
array = zarr.create_array(sys.argv[1] + "/weights.zarr", shape=(16,), dtype="float32", filters=[BitRound(keepbits=6)])
array[:] = diverged
found = zarr.open_array(sys.argv[1] + "/weights.zarr")[:]
print("through zarr:", found)
assert not found.any()
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
