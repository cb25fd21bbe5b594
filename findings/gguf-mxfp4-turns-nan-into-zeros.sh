#!/bin/sh
# gguf 0.19.0 with numpy 2.4.6: a NaN or an infinity makes 32 weights zero in MXFP4, and NaN in every other type.
#
# `gguf.quants.quantize` is used by the conversion scripts of llama.cpp. It takes the scale of a block of 32 weights from the largest one. In the
# MXFP4 type that scale is an exponent in one byte: for a NaN or an infinity it becomes the smallest one, and all 32 weights become zero. The byte
# 255 that the MX format has for NaN is not used. So a checkpoint of a diverged run becomes a file of finite numbers, whose outputs
# are wrong without a NaN that a check could find. Check the weights before the conversion.
#
# Guess: the block is read as NaN, as in the other types.
# Seen, 2026-11-29: of 64 weights one is NaN or infinite. MXFP4 returns 32 zeros and no NaN. Q8_0, Q4_0, Q5_1 and TQ2_0 return at
# least 31 NaNs. float16 and bfloat16 return that weight as it was.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'numpy==2.4.6' 'gguf==0.19.0'
cat > "$dir/try.py" <<'PY'
import importlib.metadata

import numpy
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

print("gguf", importlib.metadata.version("gguf"), "numpy", numpy.__version__)
for bad in (numpy.nan, numpy.inf):
    for name in ("MXFP4", "Q8_0", "Q4_0", "Q5_1", "TQ2_0", "F16", "BF16"):
        size = 512 if name == "TQ2_0" else 64
        weights = numpy.ones((1, size), "float32")
        weights[0, 3] = bad
        read = dequantize(quantize(weights, Type[name]), Type[name])
        nans, zeros, finite = numpy.isnan(read).sum(), (abs(read) < 1e-30).sum(), numpy.isfinite(read).all()
        print(bad, name, "NaNs:", nans, "zeros:", zeros, "rest:", read[0, -1])
        if name == "MXFP4":
            assert finite
            assert zeros == 32
        elif name in ("F16", "BF16"):
            assert numpy.array_equal(read, weights, equal_nan=True)
        else:
            assert nans >= 31
        assert read[0, -1] == 1 or abs(read[0, -1] - 1) < 0.01
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
