#!/bin/sh
# composer (mosaicml 0.32.1) with torch 2.7.0: a resume in the middle of the second epoch repeats samples and skips others.
#
# The trainer promises to continue where a checkpoint stopped. To find the place with `DataLoader(shuffle=True)`, it starts the loader once for
# each finished epoch and expects the same orders as before. These orders come from torch's global generator. Dropout and evaluation use
# that generator as well, but are not repeated. So the order of the interrupted epoch is another one, and its first batches are skipped in the
# wrong order. There is no warning. Resumes in the first epoch and at the end of an epoch are exact, and so is a model without dropout that is
# not evaluated, so a short test passes. A loader with its own `generator` is exact everywhere.
#
# Seen: 32 samples, saved in the middle of the second epoch. With dropout or an evaluation that epoch reads some samples twice and others never.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mosaicml==0.32.1' 'torch==2.7.0'
cat > "$dir/try.py" <<'PY'
import glob
import importlib.metadata
import sys

import torch
from composer import Callback, Trainer
from composer.models import ComposerClassifier
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
samples = TensorDataset(torch.arange(32.0).reshape(32, 1), torch.zeros(32, dtype=torch.long))


class Reads(Callback):
    def __init__(self):
        self.batches = []

    def batch_start(self, state, logger):
        self.batches.append((int(state.timestamp.epoch), state.batch[0].flatten().int().tolist()))


def batches_of(folder, dropout, evaluated, own_generator, load_path=None):
    torch.manual_seed(3)
    layers = ([torch.nn.Dropout(0.1)] if dropout else []) + [torch.nn.Linear(1, 2)]
    model = ComposerClassifier(torch.nn.Sequential(*layers), num_classes=2)
    reads = Reads()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(
            samples, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5) if own_generator else None
        ),
        eval_dataloader=DataLoader(samples, batch_size=4) if evaluated else None,
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-5),
        max_duration="3ep",
        seed=1,
        device="cpu",
        callbacks=reads,
        save_folder=folder,
        save_interval="4ba",
        save_overwrite=True,
        load_path=load_path,
        progress_bar=False,
        auto_log_hparams=False,
    )
    trainer.fit()
    trainer.close()
    return reads.batches


print("mosaicml", importlib.metadata.version("mosaicml"), "torch", torch.__version__)
cases = ((False, False, False), (True, False, False), (False, True, False), (True, True, False), (True, True, True))
for number, (dropout, evaluated, own_generator) in enumerate(cases):
    folder = f"{sys.argv[1]}/{number}"
    whole = batches_of(folder, dropout, evaluated, own_generator)
    for saved in (4, 8, 12):
        path = glob.glob(f"{folder}/ep*-ba{saved}-rank0.pt")[0]
        rest = batches_of(f"{folder}-{saved}", dropout, evaluated, own_generator, path)
        epoch = saved // 8
        read = [sample for of, batch in whole[:saved] + rest if of == epoch for sample in batch]
        print(
            f"dropout {dropout}, evaluated {evaluated}, own generator {own_generator}, resumed after batch {saved}:",
            f"epoch {epoch} reads {len(read)} samples, {len(set(read))} of them different; as without a stop: {rest == whole[saved:]}",
        )
        exact = saved != 12 or own_generator or not (dropout or evaluated)
        assert (rest == whole[saved:]) == exact and (len(set(read)) == 32) == exact and len(read) == 32
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
