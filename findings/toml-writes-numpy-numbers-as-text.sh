#!/bin/sh
# toml 0.10.2 with numpy 2.4.6: a NumPy number in a configuration is loaded as the text "np.float32(0.1)", and a NumPy False as a text that is true.
#
# `toml.dumps` has no encoder for the scalars of NumPy and writes their `repr` as a quoted text. A `np.float64` is a `float` for `isinstance`, but toml
# compares the exact type. So a learning rate from `np.logspace` or a threshold from an evaluation is loaded as text, and `np.bool_` as the text
# "np.False_", which is true in a condition. The package has `TomlNumpyEncoder`, which writes the numbers and arrays as numbers, but `np.bool_` still
# as text. In addition, a dict in a nested list loses its values: `[[{"a": 1}]]` is loaded as `[[["a"]]]`. Nothing is raised or logged. With `lr`
# as text, most optimizers raise an error, but a condition or a name of a folder does not. rtoml refuses NumPy scalars and keeps the nested dict.
# Convert NumPy scalars with `.item()`.
#
# Guess: the numbers are written as numbers, or refused.
# Seen, 2026-12-01: float16, float32, float64, int64 and bool are loaded as text, alone, in lists and as elements of an array. With
# `TomlNumpyEncoder`, only the bool is. The nested dict loses its value with both. rtoml 0.14.0 raises TomlSerializationError.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'toml==0.10.2' 'rtoml==0.14.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import warnings

import numpy as np
import rtoml
import toml

warnings.simplefilter("error")
print(*(f"{name} {importlib.metadata.version(name)}" for name in ("toml", "rtoml", "numpy")))
scalars = [np.float16(0.5), np.float32(0.5), np.float64(0.5), np.int64(3)]


def loaded(value, encoder=None):
    return toml.loads(toml.dumps({"value": value}, encoder=encoder))["value"]


for scalar in scalars:
    for value in (scalar, [scalar], np.array([scalar])):
        numbers = np.asarray(value).tolist()
        text, number = loaded(value), loaded(value, toml.encoder.TomlNumpyEncoder())
        print(f"{value!r}: {text!r}, with TomlNumpyEncoder {number!r}")
        assert text == (repr(scalar) if np.ndim(value) == 0 else [repr(scalar)]) and number == numbers
        assert loaded(numbers) == numbers
    try:
        rtoml.dumps({"value": scalar})
        raise AssertionError
    except rtoml.TomlSerializationError:
        pass
for encoder in (None, toml.encoder.TomlNumpyEncoder()):
    found = loaded(np.bool_(False), encoder)
    print(f"np.bool_(False): {found!r}, which is {bool(found)}; nested dict: {loaded([[{'a': 1}]], encoder)}")
    assert found == "np.False_" and loaded([[{"a": 1}]], encoder) == [[["a"]]]
    assert loaded(False, encoder) is False
assert rtoml.loads(rtoml.dumps({"value": [[{"a": 1}]]}))["value"] == [[{"a": 1}]]
PY
"$dir/venv/bin/python" "$dir/try.py"
