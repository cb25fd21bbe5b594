#!/bin/sh
# warmup-scheduler 0.3 with torch 2.13.0: after a resume, `GradualWarmupScheduler` steps the optimizer of the checkpoint, and the rate stays as it is.
#
# `GradualWarmupScheduler` warms up, and then passes the steps to `after_scheduler`. Its `state_dict()` is that of torch: all attributes without the
# optimizer. One of them is `after_scheduler` itself, which holds the optimizer. So the file contains a second optimizer with its weights, and a load
# puts a scheduler of this copy into the new `GradualWarmupScheduler`. From then on the copy gets the learning rates, and the optimizer that trains
# keeps the one it has. Nothing is raised or logged. torch loads such a file only with `weights_only=False`. Load the inner state into the new
# `after_scheduler` and put it back, as below.
#
# Guess: a scheduler with `state_dict` and `load_state_dict` continues its schedule.
# Seen, 2026-11-30: a warmup of 3 steps and a cosine schedule, 10 steps. Resumed after step 5 without a change, the rate is 0.1 for the rest of the
# run, instead of falling to 0.0354. Resumed after step 2, in the warmup, it is 0.1 and then 0.0683. With the new `after_scheduler` all rates are equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install setuptools wheel 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install --no-build-isolation 'warmup-scheduler==0.3'
cat > "$dir/try.py" <<'PY'
import sys
from importlib.metadata import version

import torch
from warmup_scheduler import GradualWarmupScheduler


def parts():
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    after = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    return optimizer, GradualWarmupScheduler(optimizer, multiplier=1, total_epoch=3, after_scheduler=after)


def rates(optimizer, scheduler, steps):
    found = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        found.append(round(optimizer.param_groups[0]["lr"], 4))
    return found


def load_with_new_after_scheduler(scheduler, state):
    after = scheduler.after_scheduler
    scheduler.load_state_dict(state)
    after.load_state_dict(scheduler.after_scheduler.state_dict())
    scheduler.after_scheduler = after


print("warmup-scheduler", version("warmup-scheduler"), "torch", torch.__version__)
whole = rates(*parts(), 10)
print("without a stop:", whole)
for stop in (2, 5):
    optimizer, scheduler = parts()
    assert rates(optimizer, scheduler, stop) == whole[:stop]
    file = f"{sys.argv[1]}/state.pt"
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
    state = torch.load(file, weights_only=False)
    optimizer, scheduler = parts()
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    own = scheduler.after_scheduler.optimizer is optimizer
    resumed = rates(optimizer, scheduler, 10 - stop)
    copy = round(scheduler.after_scheduler.optimizer.param_groups[0]["lr"], 4)
    print(f"resumed after {stop}: {resumed}, rate of the optimizer in the checkpoint: {copy}")
    assert not own and (copy == whole[-1] or stop == 2)
    assert resumed != whole[stop:] and len(set(resumed[1:])) == 1
    state = torch.load(file, weights_only=False)
    optimizer, scheduler = parts()
    optimizer.load_state_dict(state["optimizer"])
    load_with_new_after_scheduler(scheduler, state["scheduler"])
    resumed = rates(optimizer, scheduler, 10 - stop)
    print(f"resumed after {stop} with the new after_scheduler: {resumed}")
    assert resumed == whole[stop:]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
