#!/bin/sh
# pyrallis 0.3.1: a field of type `Union[int, float]` with the value 0.5 is dumped as 0.5 and loaded as 0.
#
# pyrallis writes a dataclass of hyperparameters as YAML and reads it again. For a union it calls each type with the value, in the order of the
# annotation, and keeps the first result without an exception. `int(0.5)` is 0 and `bool(0.5)` is True, so a value changes although its own type is in
# the union. A command line argument is read as YAML, so `--clip 0.5` is 0 as well. Nothing is raised or logged. A run that resumes with its own dumped
# configuration clips gradients at 0, or samples a fraction of 0. `Union[float, int]` is right, but only if it is the first of the two that the process
# reads: pyrallis caches the function that decodes a union, and Python regards unions with the same types as equal. Use `float` without a union. draccus,
# which has the same interface, keeps the value, and so does tyro.
#
# Guess: a dumped configuration is loaded with the same values.
# Seen, 2026-12-01: 0.5 becomes 0 for `Union[int, float]` and for `Union[int, float, None]`, and True for `Union[bool, float]`. With `Union[float, int]`
# it is 0.5, or 0 if the process read a `Union[int, float]` before. draccus 0.11.6 and tyro 1.0.17
# return 0.5.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'pyrallis==0.3.1' 'draccus==0.11.6' 'tyro==1.0.17'
cat > "$dir/try.py" <<'PY'
import dataclasses
import importlib.metadata
import sys
from typing import Union

import draccus
import pyrallis
import tyro

print(*(f"{name} {importlib.metadata.version(name)}" for name in ("pyrallis", "draccus", "tyro")))
FILE = sys.argv[1] + "/config.yaml"


def configuration(kind):
    return dataclasses.make_dataclass("Configuration", [("clip", kind, dataclasses.field(default=1.0))])


def check(kind, expected):
    cls = configuration(kind)
    with open(FILE, "w") as file:
        pyrallis.dump(cls(0.5), file)
    text = open(FILE).read().strip()
    with open(FILE) as file:
        loaded = pyrallis.load(cls, file).clip
    parsed = pyrallis.parse(config_class=cls, config_path=FILE, args=[]).clip
    others = draccus.load(cls, open(FILE)).clip, tyro.extras.from_yaml(cls, tyro.extras.to_yaml(cls(0.5))).clip
    print(f"{kind}: file {text!r}, load {loaded!r}, parse {parsed!r}, draccus {others[0]!r}, tyro {others[1]!r}")
    assert text == "clip: 0.5" and others == (0.5, 0.5)
    assert loaded == parsed == expected and type(loaded) is type(expected)


check(float, 0.5)
if sys.argv[2] == "float first":
    check(Union[float, int], 0.5)
    check(Union[int, float], 0.5)
else:
    check(Union[int, float], 0)
    check(Union[int, float, None], 0)
    check(Union[bool, float], True)
    check(Union[float, int], 0)
expected = 0.5 if sys.argv[2] == "float first" else 0
argument = pyrallis.parse(config_class=configuration(Union[int, float]), args=["--clip", "0.5"]).clip
print(f"{sys.argv[2]}, argument --clip 0.5: {argument}")
assert argument == expected and type(argument) is type(expected)
PY
for order in "int first" "float first"; do
    "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" "$order"
done
