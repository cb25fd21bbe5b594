#!/bin/sh
# pandas 3.1.1 with numexpr 2.14.2 and numpy 2.4.6: if numexpr is installed, `query` and `eval` treat an unsigned 64-bit number of 2^63 and more as negative.
#
# numexpr has no unsigned 64-bit integers, and uses the bits as a signed integer. pandas uses numexpr for `query` and `eval` as soon as it is installed, also for
# three rows. So `query("hash > 100")` loses the rows whose hash has its highest bit, half of all hashes, and `eval` computes negative numbers. Unsigned bytes are
# wider with numexpr: 200 + 200 is 400 instead of 144. There is no error or warning, and `frame[frame.hash > 100]` is right. Use it, or `engine="python"`.
#
# Guess: an optional package makes an expression faster, not different.
# Seen, 2026-11-30: of the hashes 5, 2^63 + 5 and 2^64 - 1, `query("hash > 100")` selects none, and the other two with `engine="python"`. `eval("hash / 2")`
# is 2.5, -4.6e18 and -0.5.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'pandas==3.1.1' 'numexpr==2.14.2' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import warnings

import numexpr
import numpy as np
import pandas as pd

warnings.simplefilter("error")
print("pandas", pd.__version__, "numexpr", numexpr.__version__)
frame = pd.DataFrame({"hash": np.array([5, 2**63 + 5, 2**64 - 1], dtype=np.uint64), "pixel": np.array([200, 1, 2], dtype=np.uint8)})
large = [2**63 + 5, 2**64 - 1]
found = {options.get("engine"): frame.query("hash > 100", **options).hash.tolist() for options in ({}, {"engine": "python"})}
print("hash > 100:", found, "with a mask:", frame[frame.hash > 100].hash.tolist())
assert found == {None: [], "python": large} and frame[frame.hash > 100].hash.tolist() == large
halves = {engine: frame.eval("hash / 2", engine=engine).tolist() for engine in ("numexpr", "python")}
print("hash / 2:", halves)
assert frame.eval("hash / 2").tolist() == halves["numexpr"] == [2.5, -(2.0**62), -0.5] and halves["python"] == [2.5, 2.0**62, 2.0**63]
doubles = {engine: frame.eval("pixel + pixel", engine=engine).tolist() for engine in ("numexpr", "python")}
print("pixel + pixel:", doubles)
assert doubles == {"numexpr": [400, 2, 4], "python": [144, 2, 4]}
assert numexpr.evaluate("hash > 100", {"hash": frame.hash.to_numpy()}).tolist() == [False] * 3
PY
"$dir/venv/bin/python" "$dir/try.py"
