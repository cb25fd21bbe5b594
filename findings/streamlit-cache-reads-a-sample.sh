#!/bin/sh
# streamlit 1.67.0: `st.cache_data` returns the result of another large array, since its keys are made of a sample of the numbers.
#
# The key of a cached call is a hash of the arguments. For a NumPy array of 500,000 numbers or more it is a hash of 100,000 of them, drawn with a
# fixed seed. For a pandas table or series from 50,000 rows on it is a hash of 10,000 rows. So a page that compares two checkpoints, or one checkpoint
# before and after a repair, shows the first result twice if the numbers that differ are not in the sample. There is no error or warning. Pass a
# digest or the id of the checkpoint as an argument, and exclude the array with a leading underscore, or use `hash_funcs`.
#
# Guess: a cache distinguishes its arguments by all their bytes.
# Seen, 2026-11-30: the sum of zeros, then of zeros with a one at the middle. Arrays of 1,000,000 and tables of 100,000 rows: 0.0 and 0.0, with one
# call. Arrays of 400,000 and tables of 40,000 rows: 0.0 and 1.0. With the digest as an argument 0.0 and 1.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'streamlit==1.67.0' 'numpy==2.4.6' 'pandas==2.3.3'
cat > "$dir/try.py" <<'PY'
import hashlib
import logging

import numpy as np
import pandas as pd
import streamlit

logging.disable(logging.CRITICAL)  # there is no page


def pair(count, table):
    """Zeros, and zeros with a one at the middle."""
    zeros, other = np.zeros(count), np.zeros(count)
    other[count // 2] = 1
    return [pd.DataFrame({"weight": numbers}) if table else numbers for numbers in (zeros, other)]


print("streamlit", streamlit.__version__, "numpy", np.__version__, "pandas", pd.__version__)
for count, table, wrong in ((400_000, False, False), (1_000_000, False, True), (40_000, True, False), (100_000, True, True)):
    calls = []

    @streamlit.cache_data(show_spinner=False)
    def total(numbers):
        calls.append(len(numbers))
        return float(np.asarray(numbers).sum())

    found = [total(numbers) for numbers in pair(count, table)]
    print(f"{'table' if table else 'array'} of {count}: sums {found}, calls {len(calls)}")
    assert found == ([0.0, 0.0] if wrong else [0.0, 1.0]) and len(calls) == (1 if wrong else 2)


@streamlit.cache_data(show_spinner=False)
def total_by_digest(digest, _numbers):
    return float(_numbers.sum())


found = [total_by_digest(hashlib.sha256(numbers).hexdigest(), numbers) for numbers in pair(1_000_000, False)]
print("with a digest:", found)
assert found == [0.0, 1.0]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" 2> "$dir/log" || { cat "$dir/log"; exit 1; }
