#!/bin/sh
# orjson 3.13.0 with numpy 2.4.6: the state of `numpy.random.default_rng()`, read from JSON by orjson, continues with other random
# numbers.
#
# PCG64, NumPy's default generator, has two numbers of 128 bits in its state. `json.dump` writes them exactly. `orjson.loads` returns each
# integer above 64 bits as a rounded float, without an error, although `orjson.dumps` refuses such an integer. NumPy accepts floats as the
# state and truncates them to integers. So a run that writes its state by `json` and reads it by orjson, which is faster, shuffles and
# augments with another stream after a resume. The generator is also weaker: its increment is now even, and the lower half of its state
# stays zero. Nothing reports it. `json`, ujson, rapidjson and msgspec return the exact integers. MT19937 and SFC64 have smaller numbers
# and resume exactly.
#
# Guess: orjson returns the integer or raises an error, and NumPy refuses a state of floats.
# Seen, 2026-11-30: no error; PCG64 and PCG64DXSM draw other numbers than the saved generator, and 2**64 + 1 is read as the float 2.0**64.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'orjson==3.13.0' 'numpy==2.4.6' 'ujson==6.1.0' 'python-rapidjson==1.25' 'msgspec==0.23.0'
cat > "$dir/try.py" <<'PY'
import json
import warnings

import msgspec
import numpy
import orjson
import rapidjson
import ujson
from numpy.random import MT19937, PCG64, PCG64DXSM, SFC64, Generator

warnings.simplefilter("error")


def continues(kind, loads):
    """Whether a generator restored from JSON draws the same numbers as the saved one."""
    saved, resumed = Generator(kind(0)), Generator(kind(1))
    saved.random(3)
    text = json.dumps(saved.bit_generator.state, default=lambda array: array.tolist())
    resumed.bit_generator.state = loads(text)
    return bool((saved.random(5) == resumed.random(5)).all())


print("orjson", orjson.__version__, "numpy", numpy.__version__)
print("2**64 + 1 is read as", repr(orjson.loads("18446744073709551617")))
assert orjson.loads("18446744073709551617") == 2.0**64
assert orjson.loads("18446744073709551615") == 2**64 - 1
try:
    orjson.dumps(2**64 + 1)
except TypeError as error:
    print("orjson.dumps:", error)
else:
    raise AssertionError("orjson.dumps accepted a large integer")
generator = Generator(PCG64(1))
generator.bit_generator.state = orjson.loads(json.dumps(PCG64(0).state))
generator.random(10_000)
low = generator.bit_generator.state["state"]["state"] % 2**64
print("lower 64 bits of the state of PCG64 after 10,000 more numbers:", low)
assert low == 0
for kind in (PCG64, PCG64DXSM, MT19937, SFC64):
    seen = {loads.__module__: continues(kind, loads) for loads in (json.loads, orjson.loads)}
    print(kind.__name__, "continues with the same numbers:", seen)
    assert seen == {"json": True, "orjson": kind in (MT19937, SFC64)}
others = [continues(PCG64, loads) for loads in (ujson.loads, rapidjson.loads, msgspec.json.decode)]
print("PCG64 with ujson, rapidjson, msgspec:", others)
assert all(others)
PY
"$dir/venv/bin/python" "$dir/try.py"
