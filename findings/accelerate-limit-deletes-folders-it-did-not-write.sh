#!/bin/sh
# accelerate 1.15.0: `total_limit` deletes, and `load_state()` loads, folders in `checkpoints` that accelerate did not write.
#
# With `automatic_checkpoint_naming`, saves are named `checkpoint_0`, `checkpoint_1` and so on. But every entry of `checkpoints` counts as one of
# them, ordered by the first number in its name. So a copy that is kept as `best_0` is deleted with the next save, because its number is
# the lowest, and a copy `best_100` counts as the newest: `load_state()` without a folder resumes from it, and the limit deletes newer checkpoints
# instead. accelerate prints how many it deletes, not which. Keep copies in another folder.
#
# Seen: `best_0` is deleted; with `best_100`, a copy of the first save, a resume loads the first save instead of the last.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'accelerate==1.15.0'
cat > "$dir/try.py" <<'PY'
import os
import shutil
import tempfile

import accelerate
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration


def trained(copy):
    """Saves 1.0, 2.0, 3.0 and 4.0, and copies the first save. Returns the folders at the end and the value that is resumed."""
    folder = tempfile.mkdtemp(dir=os.environ["DIR"])
    saves = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=saves)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    for value in (1.0, 2.0, 3.0, 4.0):
        torch.nn.init.constant_(model.weight, value)
        accelerator.save_state()
        if value == 1.0 and copy:
            shutil.copytree(f"{folder}/checkpoints/checkpoint_0", f"{folder}/checkpoints/{copy}")
    accelerator.load_state()
    return sorted(os.listdir(f"{folder}/checkpoints")), model.weight.item()


print("accelerate", accelerate.__version__)
for copy, folders, value in (
    (None, ["checkpoint_2", "checkpoint_3"], 4.0),
    ("best_0", ["checkpoint_2", "checkpoint_3"], 4.0),
    ("best_100", ["best_100", "checkpoint_3"], 1.0),
):
    found = trained(copy)
    print("copy", copy, "left:", found[0], "resumed:", found[1])
    assert found == (folders, value)
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
