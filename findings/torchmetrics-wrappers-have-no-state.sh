#!/bin/sh
# torchmetrics 1.9.0 with torch 2.13.0: `MinMaxMetric` and `BootStrapper` save nothing, even after `persistent(True)`.
#
# `persistent(True)` puts the values of a metric into its `state_dict`. On these two wrappers it reaches neither the metrics inside nor the
# wrapper. Called on the metric inside, it saves that metric's values, but the lowest and highest value so far are plain attributes and are
# never saved. A strict load finds all keys matched. So the best value so far is forgotten at a resume. `Running` saves its values.
#
# Seen: both state_dicts are empty, and the maximum after a resume is 0.5 where the run without a stop has 0.9.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'torchmetrics==1.9.0'
cat > "$dir/try.py" <<'PY'
import torch
from torchmetrics.aggregation import MeanMetric
from torchmetrics.wrappers import BootStrapper, MinMaxMetric, Running


def keys(metric):
    metric.persistent(True)
    metric.update(torch.tensor([0.9]))
    print(type(metric).__name__, "saves", list(metric.state_dict()))
    return list(metric.state_dict())


def made():
    base = MeanMetric()
    metric = MinMaxMetric(base)
    for one in (base, metric):
        one.persistent(True)
    return base, metric


def highest(stop_before):
    """The highest mean of three epochs, with a resume before one of them."""
    base, metric = made()
    for epoch, value in enumerate((0.1, 0.9, 0.5)):
        if epoch == stop_before:
            saved = metric.state_dict()
            base, metric = made()
            print("saved", list(saved), "strict load:", metric.load_state_dict(saved, strict=True))
        base.reset()
        metric.update(torch.tensor([value]))
        found = metric.compute()["max"].item()
    return round(found, 6)


assert keys(MinMaxMetric(MeanMetric())) == keys(BootStrapper(MeanMetric(), num_bootstraps=2)) == []
assert keys(Running(MeanMetric(), window=2)) != []
whole, resumed = highest(None), highest(2)
print("highest:", whole, "and after a resume:", resumed)
assert (whole, resumed) == (0.9, 0.5)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
