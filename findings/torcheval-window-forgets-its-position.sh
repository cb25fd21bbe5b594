#!/bin/sh
# torcheval 0.0.7 with torch 2.13.0: a windowed metric that was loaded from its `state_dict()` replaces the wrong entries, or returns 0 or NaN.
#
# The window is a buffer that is overwritten in a circle. The buffer is part of the state, but its position, `next_inserted`, is not. After
# `load_state_dict` the next update is written at the start of the buffer, wherever the oldest entry is. So the result covers old updates instead of
# newer ones, until the buffer has been overwritten once. `WindowedClickThroughRate`, `WindowedBinaryNormalizedEntropy` and
# `WindowedWeightedCalibration` also return 0 or NaN as the value of the window until the next update, if the window was not full. Nothing is raised. Save
# `metric.next_inserted`, and set it after the load.
#
# Guess: the state is complete, since a metric without a window continues exactly.
# Seen, 2026-11-30: a window of 4 updates that received errors 1 to 6 has the mean square 21.5. Loaded, it is 21.5 too, but after the
# next update, 7, it is 27.5 instead of 31.5. The click-through rate is 0 after a load instead of 0.75.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'torcheval==0.0.7'
cat > "$dir/try.py" <<'PY'
import copy

import torch
import torcheval
from torcheval.metrics import MeanSquaredError, WindowedClickThroughRate, WindowedMeanSquaredError


def windowed():
    return WindowedMeanSquaredError(max_num_updates=4, enable_lifetime=False)


def update(metric, errors):
    for error in errors:
        metric.update(torch.tensor([float(error)]), torch.tensor([0.0]))
    return metric.compute().item()


def resumed(build, *, position_saved=False):
    """The value before the save, after the load, and after one more update."""
    metric, again = build(), build()
    before = update(metric, range(1, 7))
    again.load_state_dict(copy.deepcopy(metric.state_dict()))
    if position_saved:
        again.next_inserted = metric.next_inserted
    return before, again.compute().item(), update(again, [7])


print("torcheval", torcheval.__version__, "torch", torch.__version__)
expected = update(windowed(), range(1, 8))
print("without a stop:", expected, "resumed:", resumed(windowed))
assert expected == 31.5 and resumed(windowed) == (21.5, 21.5, 27.5)
assert resumed(windowed, position_saved=True) == (21.5, 21.5, 31.5)
assert resumed(MeanSquaredError)[2] == update(MeanSquaredError(), range(1, 8))

rate, again = (WindowedClickThroughRate(enable_lifetime=False) for _ in range(2))
rate.update(torch.tensor([1, 1, 0, 1]))
again.load_state_dict(copy.deepcopy(rate.state_dict()))
print("click-through rate:", rate.compute().item(), "after a load:", again.compute().item())
assert (rate.compute().item(), again.compute().item()) == (0.75, 0.0)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
