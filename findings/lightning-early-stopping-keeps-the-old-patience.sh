#!/bin/sh
# lightning 2.6.6 with torch 2.13.0: a resumed run ignores the `patience` of its `EarlyStopping`.
#
# The checkpoint contains the patience of the callback, and the load replaces that of the code. The counter of bad epochs is also restored.
# So a run that stopped too early and is resumed with a larger patience trains one epoch and stops again, without a warning. `min_delta`
# and the other arguments are those of the code. Set `patience` in `on_train_start`, after the load.
#
# Guess: the load restores the counter and the best score, and the patience is that of the code, as for the other arguments.
# Seen, 2026-11-30: a run with patience 3 stops after 4 epochs. Resumed with patience 10 it has patience 3 and stops after epoch 5. With
# `on_train_start` it stops after 11, as a run with patience 10 from the start does.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'lightning==2.6.6'
cat > "$dir/try.py" <<'PY'
import logging
import sys

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).mean() * 0

    def validation_step(self, batch, index):
        self.log("loss", 1.0 + self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Patience(Callback):
    def __init__(self, stopping, value):
        self.stopping, self.value = stopping, value

    def on_train_start(self, trainer, module):
        self.stopping.patience = self.value


def trained(folder, patience, min_delta=0.0, resume=None, set_again=False):
    stopping = EarlyStopping("loss", patience=patience, min_delta=min_delta)
    saving = ModelCheckpoint(f"{sys.argv[1]}/{folder}", save_last=True)
    callbacks = [stopping, saving] + [Patience(stopping, patience)] * set_again
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=20, accelerator="cpu", callbacks=callbacks, **quiet)
    trainer.fit(Model(), loader, loader, ckpt_path=resume, weights_only=False)
    print(f"{folder}: patience {patience} in the code, {stopping.patience} in the run, stopped after epoch {trainer.current_epoch}")
    return saving.last_model_path, (stopping.patience, abs(stopping.min_delta), trainer.current_epoch)


print("lightning", lightning.__version__, "torch", torch.__version__)
last, first = trained("first", 3)
assert first == (3, 0, 4)
assert trained("resumed", 10, 0.5, last)[1] == (3, 0.5, 5)
assert trained("resumed-and-set", 10, 0.5, last, True)[1] == (10, 0.5, 11)
assert trained("from-the-start", 10)[1] == (10, 0, 11)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
