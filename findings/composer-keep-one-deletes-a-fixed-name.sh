#!/bin/sh
# composer (mosaicml 0.32.1) with torch 2.7.0: with a fixed file name, `save_num_checkpoints_to_keep` deletes the checkpoint it just wrote.
#
# The trainer lists the paths of its saves and, when the list is too long, deletes the file of the oldest entry. If the name is the same each
# time, as in `save_filename="last.pt"` with `save_overwrite=True`, the oldest entry and the newest one are the same file. So once the list is
# full, every save ends with no file, and `latest-rank0.pt` is a link to nothing. There is no warning. A name with `{batch}` is right, and so is
# a fixed name without `save_num_checkpoints_to_keep`, which keeps one file anyway.
#
# Seen: keep 1 and three saves as `last.pt`: no checkpoint remains. Keep 2: none either. Without the option, or with `{batch}` in the name, the
# newest one remains.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mosaicml==0.32.1' 'torch==2.7.0'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys
from pathlib import Path

import torch
from composer import Trainer
from composer.models import ComposerClassifier
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
samples = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
print("mosaicml", importlib.metadata.version("mosaicml"), "torch", torch.__version__)
for keep, filename in ((-1, "last.pt"), (1, "last.pt"), (2, "last.pt"), (1, "ba{batch}.pt")):
    folder = Path(sys.argv[1]) / f"{keep}-{filename[:2]}"
    model = ComposerClassifier(torch.nn.Linear(4, 2), num_classes=2)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(samples, batch_size=4),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        max_duration="3ep",
        device="cpu",
        save_folder=str(folder),
        save_filename=filename,
        save_overwrite=True,
        save_num_checkpoints_to_keep=keep,
        progress_bar=False,
        auto_log_hparams=False,
    )
    trainer.fit()
    trainer.close()
    files = sorted(path.name for path in folder.iterdir() if not path.is_symlink())
    latest = folder / "latest-rank0.pt"
    print(f"keep {keep}, {filename}: files {files}, latest is a link: {latest.is_symlink()}, to a file: {latest.exists()}")
    lost = keep > 0 and filename == "last.pt"
    assert (files == []) == lost and latest.is_symlink() and latest.exists() != lost
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
