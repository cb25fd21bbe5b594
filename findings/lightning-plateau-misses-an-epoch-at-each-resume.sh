#!/bin/sh
# lightning 2.6.6 with torch 2.13.0: after each resume at the end of an epoch, `ReduceLROnPlateau` has missed that epoch.
#
# `ModelCheckpoint` saves an epoch before the trainer steps a plateau scheduler with the metric of that epoch. So the checkpoint holds the
# scheduler without the epoch, although the weights have it. A resume does not make up for the step. The best value and the count of bad
# epochs are behind by one, and by one more after every further resume: the learning rate falls later, and a run that is stopped as often as the
# patience lasts never lowers it. There is no warning. It happens with the default checkpoint, with `monitor` and with
# `save_on_train_epoch_end=True`. Other schedulers are stepped before the save and resume exactly.
#
# Seen: a constant metric, patience 2. Without a stop the rate falls after 4 epochs, with one stop after 5, and with a stop in each epoch it never
# falls. The checkpoint of the first epoch has a scheduler that has made 0 steps. StepLR falls after 4 epochs in all three.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'lightning==2.6.6'
cat > "$dir/try.py" <<'PY'
import glob
import logging
import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
epochs, loader = 8, DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)


class Preempted(Exception):
    pass


class Model(lightning.LightningModule):
    def __init__(self, plateau, rates, stop_in):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.plateau, self.rates, self.stop_in = plateau, rates, stop_in

    def training_step(self, batch, number):
        if self.current_epoch == self.stop_in and number == 1:
            raise Preempted
        self.rates[self.current_epoch] = self.optimizers().param_groups[0]["lr"]
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, number):
        self.log("metric", torch.tensor(1.0))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = ReduceLROnPlateau(optimizer, patience=2) if self.plateau else StepLR(optimizer, 4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "metric"}}


def rates_with(plateau, stops, options, folder):
    rates, path = [0.0] * epochs, None
    for stop in [*stops, None]:
        checkpoint = ModelCheckpoint(dirpath=folder, **options)
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            callbacks=checkpoint,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        try:
            trainer.fit(Model(plateau, rates, stop), loader, loader, ckpt_path=path, weights_only=False)
        except Preempted:
            path = max(glob.glob(f"{folder}/*.ckpt"), key=lambda name: int(name.split("step=")[1].split(".")[0]))
            if stop == 1:
                steps = torch.load(path, weights_only=False)["lr_schedulers"][0]["last_epoch"]
                print(f"steps of the scheduler in the checkpoint of the first epoch: {steps}")
                assert steps == (0 if plateau else 1)
    falls = [epoch for epoch, rate in enumerate(rates) if rate < 0.05]
    return min(falls) if falls else None


print("lightning", lightning.__version__, "torch", torch.__version__)
number = 0
for plateau in (True, False):
    for options in ({}, {"monitor": "metric", "save_top_k": -1}, {"save_on_train_epoch_end": True}):
        found = []
        for stops in ([], [1], list(range(1, epochs))):
            number += 1
            found.append(rates_with(plateau, stops, options, f"{sys.argv[1]}/{number}"))
        print(f"plateau {plateau}, {options}: the rate falls after {found} epochs with no stop, one stop and a stop in each epoch")
        assert found == ([4, 5, None] if plateau else [4, 4, 4])
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
