#!/bin/sh
# lightning 2.6.6 with torch 2.13.0: after a fit with `EMAWeightAveraging`, `trainer.test(ckpt_path="best")` tests the weights before averaging.
#
# The callbacks `WeightAveraging` and `EMAWeightAveraging` put the averaged weights into the checkpoint as the model, and the weights of the last
# step beside them for a resume. When a trainer that has fitted loads a checkpoint, the callback sets the model to the weights of the last step,
# also for `test` and `predict`, where no hook exchanges them for the averaged ones. `validate` has that hook, so its metric is the one that chose
# the checkpoint. So a script that fits and then tests "best" reports the metrics and predictions of a model that nobody keeps, and the model in
# memory is that one afterwards. A fresh trainer, `load_from_checkpoint` and `test` without `ckpt_path` use the averaged weights.
#
# Seen: a noisy fit. The loss of `test(ckpt_path="best")` is the one of a fit without averaging, more than ten times that of the averaged weights.
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
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, WeightAveraging
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
drawn = torch.Generator().manual_seed(0)
inputs = torch.randn(256, 4, generator=drawn)
clean = inputs.sum(1, keepdim=True)
noisy = clean + 3.0 * torch.randn(256, 1, generator=drawn)
train_loader = DataLoader(TensorDataset(inputs, noisy), batch_size=2)
clean_loader = DataLoader(TensorDataset(inputs, clean), batch_size=256)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def loss(self, batch):
        return (self.layer(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch, number):
        return self.loss(batch)

    def validation_step(self, batch, number):
        self.log("loss", self.loss(batch))

    def test_step(self, batch, number):
        self.log("loss", self.loss(batch))

    def predict_step(self, batch, number):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def trainer_with(callbacks):
    return lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def losses(number, averaging):
    checkpoint = ModelCheckpoint(dirpath=f"{sys.argv[1]}/{number}", monitor="loss")
    trainer, model = trainer_with([checkpoint, *averaging()]), Model()
    trainer.fit(model, train_loader, clean_loader)
    best = {"verbose": False, "ckpt_path": "best", "weights_only": False}
    found = {"monitored": float(checkpoint.best_model_score)}
    found["validate best"] = trainer.validate(model, clean_loader, **best)[0]["loss"]
    found["test best"] = trainer.test(model, clean_loader, **best)[0]["loss"]
    found["predict best"] = float(trainer.predict(model, clean_loader, ckpt_path="best", weights_only=False)[0])
    path = checkpoint.best_model_path
    fresh = trainer_with([*averaging()]).test(Model(), clean_loader, verbose=False, ckpt_path=path, weights_only=False)
    found["test best with a fresh trainer"] = fresh[0]["loss"]
    loaded = Model.load_from_checkpoint(path, weights_only=False)
    found["load_from_checkpoint"] = float(loaded.loss((inputs, clean)))
    return found


print("lightning", lightning.__version__, "torch", torch.__version__)
kinds = {"none": list, "EMA": lambda: [EMAWeightAveraging(decay=0.99)], "average": lambda: [WeightAveraging()]}
for number, (name, averaging) in enumerate(kinds.items()):
    found = losses(number, averaging)
    print(f"averaging {name}:", ", ".join(f"{of} {loss:.3g}" for of, loss in found.items()))
    for of, loss in found.items():
        other = name != "none" and of in ("test best", "predict best")
        assert loss > 10 * found["monitored"] if other else abs(loss - found["monitored"]) < 1e-4, (name, of)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
