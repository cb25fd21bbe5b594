#!/bin/sh
# zarr 3.1.6: after `consolidate_metadata`, each new process that appends to an array overwrites the rows of the last process.
#
# Consolidated metadata is a copy of the shapes of all arrays in their group. `append` writes the new shape to the array, but not to the
# copy. `open_group`, also with mode="a" or "r+", prefers the copy. So a run that is resumed opens its array of losses or samples with the
# old shape and appends at the old end, over the rows of the run before. Within one process all rows are visible. There is no warning, and
# a reader of the group sees none of the appended rows. Consolidate again after each append, or open with `use_consolidated=False`.
#
# Guess: a group that is opened for writing reads the real shapes, or `append` updates the copy.
# Seen, 2026-11-30: 3 rows, consolidated; two processes append [10, 11] and [20, 21]. The array has 5 rows, 10 and 11 are lost, and the
# group shows the 3 old rows. Without consolidation, and with `use_consolidated=False`, it has all 7. Both formats, 2 and 3, do this.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'zarr==3.1.6' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import subprocess
import sys
import warnings

import numpy as np
import zarr

warnings.filterwarnings("error")
warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")
RUN = """if True:
    import sys, warnings
    warnings.filterwarnings("error")
    import numpy, zarr
    loss = zarr.open_group(sys.argv[1], mode="a", **eval(sys.argv[3]))["loss"]
    loss.append(numpy.array(eval(sys.argv[2]), "f4"))
    print("    a run appends", sys.argv[2], "and reads", loss[:].tolist())
"""


def losses(name, zarr_format, consolidate, options):
    path = f"{sys.argv[1]}/{name}"
    loss = zarr.open_group(path, mode="w", zarr_format=zarr_format).create_array("loss", shape=(0,), chunks=(2,), dtype="f4")
    loss.append(np.array([1, 2, 3], "f4"))
    if consolidate:
        zarr.consolidate_metadata(path)
    for rows in ("[10, 11]", "[20, 21]"):
        subprocess.run([sys.executable, "-c", RUN, path, rows, options], check=True)
    seen = zarr.open_array(path + "/loss", mode="r")[:].tolist(), zarr.open_group(path, mode="r")["loss"][:].tolist()
    print(f"format {zarr_format}, {consolidate=}, options {options}: array {seen[0]}, in the group {seen[1]}", flush=True)
    return seen


print("zarr", zarr.__version__, flush=True)
every = [1, 2, 3, 10, 11, 20, 21]
for zarr_format in (2, 3):
    assert losses(f"plain{zarr_format}", zarr_format, False, "{}") == (every, every)
    assert losses(f"consolidated{zarr_format}", zarr_format, True, "{}") == ([1, 2, 3, 20, 21], [1, 2, 3])
    assert losses(f"option{zarr_format}", zarr_format, True, "{'use_consolidated': False}")[0] == every
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
