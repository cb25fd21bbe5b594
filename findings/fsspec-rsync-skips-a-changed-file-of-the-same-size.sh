#!/bin/sh
# fsspec 2026.9.0: `fsspec.generic.rsync` does not copy a file that has changed, if its size is the same.
#
# rsync compares sizes and modification times. The function of this name compares sizes only. Each checkpoint of a model has the size of
# the one before. So a file that is replaced by each save, such as `latest.pt` or `optimizer.bin`, is copied once and never again. There
# is no warning, and the copy on the remote remains that of the first save. Pass `update_cond="always"`.
#
# Guess: a newer file is copied, as by rsync.
# Seen, 2026-11-30: three files of torch.save with the same size and other weights, each an hour newer than the one before: rsync copies
# nothing, between local folders and to a memory filesystem, and the copy still has the weights of step 1. `update_cond="always"` copies
# it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'fsspec==2026.9.0'
cat > "$dir/try.py" <<'PY'
import os
import sys

import fsspec
import torch
from fsspec.generic import rsync

source = sys.argv[1] + "/run"
os.mkdir(source)


def save(step):
    """Replace the checkpoint, with a time one hour after that of the step before."""
    model = torch.nn.Linear(64, 64)
    torch.nn.init.constant_(model.weight, float(step))
    torch.save({"step": step, "model": model.state_dict()}, source + "/latest.pt")
    os.utime(source + "/latest.pt", (1_700_000_000 + 3600 * step,) * 2)
    return os.stat(source + "/latest.pt").st_size


def step_at(target):
    with fsspec.open(target + "/latest.pt") as file:
        return torch.load(file)["step"]


print("fsspec", fsspec.__version__)
for target in ("file://" + sys.argv[1] + "/copy", "memory://copy"):
    sizes, steps, copied = [], [], []
    for step, options in ((1, {}), (2, {}), (3, {}), (3, {"update_cond": "always"})):
        sizes.append(save(step))
        copied.append(len(rsync("file://" + source, target, **options)))
        steps.append(step_at(target))
    print(f"{target.split(':')[0]}: sizes {sizes}, files copied {copied}, step of the copy {steps}")
    assert len(set(sizes)) == 1
    assert steps == [1, 1, 1, 3]
    assert copied == [1, 0, 0, 1]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
