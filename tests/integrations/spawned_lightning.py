"""A run of Lightning in processes that it starts itself: STORE FOLDER STRATEGY BACKGROUND."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

from ckstore import Store
from ckstore.integrations.lightning import CkstoreCheckpointIO, ExactResume


def main(store: str, folder: str, strategy: str, background: str) -> None:
    model = BoringModel()
    trainer = Trainer(
        default_root_dir=folder,
        strategy=strategy,
        accelerator="cpu",
        devices=1,
        max_steps=2,
        limit_val_batches=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[CkstoreCheckpointIO(Store.open(store), background=bool(int(background)))],
        callbacks=[ExactResume()],
    )
    trainer.fit(model)
    # What the main process has got from the process that trained.
    torch.save({name: value.clone() for name, value in model.state_dict().items()}, Path(folder) / "weights.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
