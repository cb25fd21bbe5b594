#!/bin/sh
# keras 3.15.1 with torch 2.13.0: after a restore by `BackupAndRestore`, `save_best_only=True` replaces the best model by a worse one.
#
# `BackupAndRestore` continues a stopped `fit` with the weights, the optimizer and the epoch number. The other callbacks begin anew. So
# `ModelCheckpoint` has forgotten the best value: the first epoch after the restore counts as the best one and overwrites the file, which cannot be
# brought back. `EarlyStopping` and `ReduceLROnPlateau` begin their patience again, and a run that is stopped as often as the patience lasts never
# stops early and never lowers its rate. There is no warning, and weights and optimizer continue bit for bit, so a comparison of them passes. A
# new process has to pass the best value as `initial_value_threshold` itself.
#
# Seen: the validation loss is the lowest in epoch 0 and rises. Without a stop the file keeps the model of epoch 0, and training ends
# after epoch 3. Stopped once before epoch 3, the file has the model of epoch 3 and training ends after epoch 6. Stopped before every second
# epoch, it has that of epoch 8, training does not end early, and the rate is never lowered.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'keras==3.15.1'
cat > "$dir/try.py" <<'PY'
import os
import sys

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
import torch

torch.set_num_threads(1)
inputs = numpy.ones((8, 1), "float32")
validation = (inputs, numpy.zeros((8, 1), "float32"))


class Preempted(Exception):
    pass


class Watch(keras.callbacks.Callback):
    def __init__(self, stop, log):
        super().__init__()
        self.stop, self.log = stop, log

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.stop:
            raise Preempted

    def on_epoch_end(self, epoch, logs=None):
        kernel = float(self.model.get_weights()[0][0, 0])
        self.log[epoch] = (kernel, round(logs["val_loss"], 5), float(self.model.optimizer.learning_rate))


def run(folder, stops):
    log = {}
    for stop in [*stops, None]:
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="mse")
        callbacks = [
            keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", monitor="val_loss", save_best_only=True),
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=3),
            keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=2),
            keras.callbacks.BackupAndRestore(f"{folder}/backup"),
            Watch(stop, log),
        ]
        try:
            model.fit(inputs, inputs, batch_size=4, epochs=10, validation_data=validation, callbacks=callbacks, verbose=0)
        except Preempted:
            pass
    best = float(keras.models.load_model(f"{folder}/best.keras").get_weights()[0][0, 0])
    saved = next(epoch for epoch, (kernel, _, _) in log.items() if kernel == best)
    lowered = next((epoch for epoch, (_, _, rate) in log.items() if rate < 0.005), None)
    return saved, max(log), lowered, log


print("keras", keras.__version__, "torch", torch.__version__)
results = {}
for stops in ([], [3], [2, 4, 6, 8]):
    folder = f"{sys.argv[1]}/{len(stops)}"
    os.makedirs(folder)
    saved, last, lowered, log = results[len(stops)] = run(folder, stops)
    losses = [loss for _, loss, _ in log.values()]
    print(f"stopped before epochs {stops}: best file has epoch {saved}, last epoch {last}, rate lowered in {lowered}; losses {losses}")
    assert min(losses) == losses[0]
whole, once, often = results[0], results[1], results[4]
assert whole[:3] == (0, 3, 2)
assert once[:2] == (3, 6) and once[3][3][:2] == whole[3][3][:2]
assert often[:3] == (8, 9, None)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
