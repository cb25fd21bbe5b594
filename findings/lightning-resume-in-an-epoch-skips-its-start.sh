#!/bin/sh
# lightning 2.6.6 with torch 2.13.0: after a resume inside an epoch, `on_train_epoch_start` is not called for the rest of that epoch.
#
# Callbacks that act in this hook do nothing until the next epoch. `GradientAccumulationScheduler` accumulates as in epoch 0, so the rest of the
# epoch has more and smaller optimizer steps. `StochasticWeightAveraging` keeps the ordinary learning rate one epoch longer. A checkpoint of the last
# batch, which `every_n_train_steps` writes if the number divides the epoch, counts as inside: then `on_train_epoch_end` of that epoch, its
# validation and `on_train_epoch_start` of the whole next epoch are missing. No warning names them. Saves of `every_n_epochs` are right.
#
# Seen: epochs of 8 batches, accumulated by 1 in epoch 0 and by 2 afterwards. 16 steps without a stop; 19 after a resume in the middle of
# epoch 1, and 20 after one at the last batch of epoch 0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'lightning==2.6.6'
cat > "$dir/try.py" <<'PY'
import logging
import os
import tempfile

import lightning
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint, StochasticWeightAveraging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
# All batches are equal, so it does not matter which of them a resume reads.
LOADER = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.hooks, self.rates = [], {}

    def on_train_epoch_start(self):
        self.hooks.append(f"start {self.current_epoch}")

    def on_train_epoch_end(self):
        self.hooks.append(f"end {self.current_epoch}")

    def training_step(self, batch, number):
        self.rates[self.current_epoch, number] = round(self.optimizers().param_groups[0]["lr"], 4)
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.1)


def trained(callback, folder, resume=None, **when):
    torch.manual_seed(0)
    model = Model()
    saves = ModelCheckpoint(dirpath=folder, save_top_k=-1, filename="{epoch}-{step}", **when)
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[callback(), saves]
    )
    trainer.fit(model, LOADER, ckpt_path=resume)
    return model, trainer.global_step


def accumulation():
    return GradientAccumulationScheduler({0: 1, 1: 2})


def averaging():
    return StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2, annealing_epochs=1)


def resumed(callback, name, **when):
    """The training without a stop, and the one that is resumed from the checkpoint with this name."""
    folder, other = (tempfile.mkdtemp(dir=os.environ["DIR"]) for _ in range(2))
    whole = trained(callback, folder, **when)
    again = trained(callback, other, f"{folder}/{name}.ckpt", **when)
    print(f"{callback.__name__}, {when}, resumed from {name}: hooks {again[0].hooks}, steps {whole[1]} and {again[1]}")
    return whole, again


print("lightning", lightning.__version__)
every_step, every_epoch = {"every_n_train_steps": 2}, {"every_n_epochs": 1}

whole, again = resumed(accumulation, "epoch=1-step=9", every_n_train_steps=1)
assert again[0].hooks == ["end 1", "start 2", "end 2"] and (whole[1], again[1]) == (16, 19)
whole, again = resumed(accumulation, "epoch=0-step=8", **every_step)
assert again[0].hooks == ["end 1", "start 2", "end 2"] and (whole[1], again[1]) == (16, 20)
whole, again = resumed(accumulation, "epoch=0-step=8", **every_epoch)
assert again[0].hooks == ["start 1", "end 1", "start 2", "end 2"] and (whole[1], again[1]) == (16, 16)

for name, when, right in (("epoch=0-step=8", every_step, False), ("epoch=0-step=8", every_epoch, True)):
    whole, again = (model.rates for model, _ in resumed(averaging, name, **when))
    rates = [(epoch, whole[epoch, 0], again[epoch, 0]) for epoch in (1, 2)]
    print("learning rate by epoch, without a stop and resumed:", rates)
    assert all(one == other for _, one, other in rates) == right
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
