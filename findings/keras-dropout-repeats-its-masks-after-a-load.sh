#!/bin/sh
# keras 3.15.1 with torch 2.13.0: no checkpoint contains the random state of `Dropout`, so a resumed run repeats the masks of its first steps.
#
# The state of each `Dropout`, `GaussianNoise` and random augmentation layer is a variable, `seed_generator_state`. `model.variables` contains it. A save
# writes only the weights of a layer, without this variable. So `load_model` and `BackupAndRestore` continue with the weights and the optimizer, and
# with the random numbers of the first epoch. A run that is stopped often trains with the same few masks. Nothing is raised or logged. Models without
# such layers continue exactly. Save `seed_generator.state` of each layer, and assign it after the load.
#
# Guess: a variable of the model is saved with the model.
# Seen, 2026-11-30: the state is [3, 2] after two calls, and [3, 0] after a load. The third mask of the resumed run is the first of the
# original one. A run that `BackupAndRestore` resumes ends with other weights, and with equal ones without dropout.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'keras==3.15.1'
cat > "$dir/try.py" <<'PY'
import sys

import keras
import numpy as np
import torch

print("keras", keras.__version__, "backend", keras.backend.backend(), "torch", torch.__version__)
ones = np.ones((2, 16), "float32")


def mask(model):
    return keras.ops.convert_to_numpy(model(ones, training=True))


def random_state(model):
    return model.layers[0].seed_generator.state.numpy().tolist()


model = keras.Sequential([keras.Input((16,)), keras.layers.Dropout(0.5, seed=3)])
assert [variable.path for variable in model.variables] == ["seed_generator/seed_generator_state"]
first = mask(model)
mask(model)
path = sys.argv[1] + "/model.keras"
model.save(path)
again = keras.models.load_model(path)
print("state when saved:", random_state(model), "after the load:", random_state(again))
assert random_state(model) == [3, 2] and random_state(again) == [3, 0]
third = mask(model)
assert not np.array_equal(third, first) and np.array_equal(mask(again), first)

inputs = np.random.RandomState(0).randn(64, 4).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)


class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 4:
            raise KeyboardInterrupt


def train(dropout, callbacks):
    keras.utils.set_random_seed(1)
    noise = [keras.layers.Dropout(0.2)] if dropout else []
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), *noise, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    try:
        model.fit(inputs, targets, batch_size=16, epochs=8, shuffle=False, verbose=0, callbacks=callbacks)
    except KeyboardInterrupt:
        pass
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


for dropout in (True, False):
    folder = f"{sys.argv[1]}/backup-{dropout}"
    whole = train(dropout, [])
    train(dropout, [keras.callbacks.BackupAndRestore(folder), Stop()])
    resumed = train(dropout, [keras.callbacks.BackupAndRestore(folder)])
    print("dropout" if dropout else "no dropout", "largest difference after a resume:", np.abs(whole - resumed).max())
    assert np.array_equal(whole, resumed) == (not dropout)
PY
KERAS_BACKEND=torch "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
