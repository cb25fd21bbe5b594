#!/bin/sh
# gin-config 0.5.0 with numpy 2.4.6: the saved configuration lacks parameters that are infinite or NumPy numbers, so a resume uses the defaults.
#
# `operative_config_str` returns the parameters of all functions that were called, as text for a configuration file. A run saves it to be repeated. A
# value is written only if its `repr` can be parsed again. `repr(float("inf"))` is "inf", which gin cannot parse, and with NumPy 2, `repr` of a number is
# "np.float64(0.5)". Such parameters are left out, and so is a tuple with one such element. Nothing is raised or logged. The docstring says that values
# that are not literals are excluded, but a number looks like a literal: a configuration file with `train.clip = 1e400` is read as infinity, and the
# text saved from it lacks the line. With NumPy 1, the `repr` was "0.5", so the same code saved NumPy numbers before the update. A run with the saved
# text has the default values of the function. Convert NumPy numbers with `.item()`, and use None or a large number instead of infinity.
#
# Guess: each parameter with a number is saved, or an error is raised.
# Seen, 2026-12-01: of `lr`, `clip`, `steps` and `betas`, set to np.float64(0.5), infinity, np.int64(7) and (0.9, np.float32(0.5)), the text has none. A
# run with it uses 0.1, 1.0, 3 and (0.9, 0.99). Numbers of Python are saved. `config_str` lacks the same parameters.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'gin-config==0.5.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import math
import warnings

import gin
import numpy as np

warnings.simplefilter("error")
print("gin-config", importlib.metadata.version("gin-config"), "numpy", np.__version__)


@gin.configurable
def train(lr=0.1, clip=1.0, steps=3, betas=(0.9, 0.99)):
    return lr, clip, steps, betas


def repeated():
    """The arguments of a run with the saved configuration of this run."""
    expected, saved, whole = train(), gin.operative_config_str(), gin.config_str()
    gin.clear_config()
    gin.parse_config(saved)
    found = train()
    print(f"run {expected}, saved {[line for line in saved.splitlines() if ' = ' in line]}, repeated {found}")
    gin.clear_config()
    return expected, found, saved, whole


for name, value in {"lr": 0.5, "clip": 100.0, "steps": 7, "betas": (0.9, 0.5)}.items():
    gin.bind_parameter(f"train.{name}", value)
expected, found, saved, whole = repeated()
assert expected == found == (0.5, 100.0, 7, (0.9, 0.5)) and "train.clip = 100.0" in saved and "train.clip = 100.0" in whole

for name, value in {"lr": np.float64(0.5), "clip": math.inf, "steps": np.int64(7), "betas": (0.9, np.float32(0.5))}.items():
    gin.bind_parameter(f"train.{name}", value)
expected, found, saved, whole = repeated()
assert expected == (0.5, math.inf, 7, (0.9, 0.5)) and found == (0.1, 1.0, 3, (0.9, 0.99))
assert " = " not in saved and " = " not in whole

gin.parse_config("train.clip = 1e400")
expected, found, saved, whole = repeated()
assert expected[1] == math.inf and found[1] == 1.0 and "train.lr = 0.1" in saved and "clip" not in saved + whole
PY
"$dir/venv/bin/python" "$dir/try.py"
