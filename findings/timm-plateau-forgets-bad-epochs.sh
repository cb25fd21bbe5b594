#!/bin/sh
# timm 1.0.31: `PlateauLRScheduler.state_dict()` does not hold the number of bad epochs.
#
# It has `best` and `last_epoch` only. After a resume the patience begins again at zero, so the learning rate falls later than in the
# run that went on; a run that is requeued more often than its patience lasts never lowers the rate. With learning rate noise the
# base of the noise is lost as well. `ReduceLROnPlateau` of torch, which it wraps, keeps the count in its own state.
#
# Seen: patience 4, a metric that never improves. Without a stop the rate is lowered at epoch 6; resumed after epoch 4, at epoch 9.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install --no-deps 'timm==1.0.31'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import importlib.util
import sys
import types

import torch

# Only the schedulers: the rest of the package imports torchvision, which they do not need.
package = types.ModuleType("timm")
package.__path__ = importlib.util.find_spec("timm").submodule_search_locations
sys.modules["timm"] = package
from timm.scheduler.plateau_lr import PlateauLRScheduler


def made():
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0)
    return optimizer, PlateauLRScheduler(optimizer, decay_rate=0.1, patience_t=4, mode="min")


def lowered_at(resume_after):
    optimizer, scheduler = made()
    for epoch in range(1, 20):
        optimizer.step()
        scheduler.step(epoch, metric=1.0)
        if optimizer.param_groups[0]["lr"] < 1.0:
            return epoch
        if epoch == resume_after:
            states = optimizer.state_dict(), scheduler.state_dict()
            optimizer, scheduler = made()
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])


print("timm", importlib.metadata.version("timm"), "state:", sorted(made()[1].state_dict()))
whole, resumed = lowered_at(None), lowered_at(4)
print("lowered at epoch", whole, "and, resumed after epoch 4, at epoch", resumed)
assert sorted(made()[1].state_dict()) == ["best", "last_epoch"] and (whole, resumed) == (6, 9)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
