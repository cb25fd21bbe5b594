#!/bin/sh
# speechbrain 1.1.2 with torch 2.13.0: a `ScheduledLoss` in a checkpoint begins its schedule again, although it has methods to save and load it.
#
# `ScheduledLoss` changes the loss function after a number of steps. It marks a `save` and a `load` method for the `Checkpointer`, which store the number of
# steps. But the class is not registered, as the learning rate schedulers in the same module are, and these methods are never called. The checkpointer saves it as
# any torch module, by its `state_dict`, which is empty. So a resumed run trains with the first loss function again. The save logs that the state is empty, and
# the load logs nothing. `InverseSquareRootScheduler` is registered with a `save` method only: its checkpoints are written, and the first
# resume ends in RuntimeError. Decorate the class with `register_checkpoint_hooks` yourself, as below.
#
# Guess: an object with such methods continues from a checkpoint.
# Seen, 2026-11-30: a schedule of 3 steps of the squared error, 2 of the absolute error, then the smooth one. Saved after step 6, the next losses are 0.125
# without a stop, and 0.25 (squared error) after the resume. With the decorator they are equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install --no-deps 'speechbrain==1.1.2' # torchaudio, which is not used here, often needs another torch
"$dir/venv/bin/pip" -q install hyperpyyaml joblib packaging scipy sentencepiece tqdm huggingface_hub requests soundfile
cat > "$dir/try.py" <<'PY'
import sys
from types import ModuleType

sys.modules["torchaudio"] = ModuleType("torchaudio")  # Only the import needs it.

import speechbrain
import torch
from speechbrain.nnet.schedulers import InverseSquareRootScheduler, ScheduledLoss
from speechbrain.utils.checkpoints import Checkpointer, register_checkpoint_hooks

OUTPUT, TARGET = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.5])


@register_checkpoint_hooks
class RegisteredLoss(ScheduledLoss):
    save = ScheduledLoss.save
    load = ScheduledLoss.load


def loss(kind):
    steps = [{"steps": 3, "loss_fn": torch.nn.MSELoss()}, {"steps": 2, "loss_fn": torch.nn.L1Loss()}, {"loss_fn": torch.nn.SmoothL1Loss()}]
    return kind(steps)


def losses(scheduled, count):
    return [round(scheduled(OUTPUT, TARGET).item(), 4) for _ in range(count)]


print("speechbrain", speechbrain.__version__, "torch", torch.__version__)
for kind, exact in ((ScheduledLoss, False), (RegisteredLoss, True)):
    folder = f"{sys.argv[1]}/{kind.__name__}"
    whole = loss(kind)
    first = losses(whole, 6)
    Checkpointer(folder, {"loss": whole}).save_checkpoint()
    resumed = loss(kind)
    assert Checkpointer(folder, {"loss": resumed}).recover_if_possible() is not None
    expected, found = losses(whole, 4), losses(resumed, 4)
    print(f"{kind.__name__}: first 6 losses {first}, then without a stop {expected}, resumed {found}")
    assert first == [0.25] * 3 + [0.5] * 2 + [0.125] and expected == [0.125] * 4
    assert found == (expected if exact else first[:4])

folder = f"{sys.argv[1]}/rate"
Checkpointer(folder, {"rate": InverseSquareRootScheduler(2)}).save_checkpoint()
try:
    Checkpointer(folder, {"rate": InverseSquareRootScheduler(2)}).recover_if_possible()
except RuntimeError as error:
    print("InverseSquareRootScheduler:", " ".join(str(error).split()))
else:
    raise SystemExit("InverseSquareRootScheduler can be loaded.")
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" 2> "$dir/log" || { cat "$dir/log"; exit 1; }
