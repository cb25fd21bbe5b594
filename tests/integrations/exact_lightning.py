"""A tiny training of Lightning with dropout, a schedule and a shuffled order."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from ckstore import Store
from tests.support.stores import check_store


def fit(
    folder: Path,
    *,
    stop_at: int = -1,
    resume: bool = False,
    seed: int = 1,
    every: int = 3,
    batch_size: int = 4,
    rate: float = 0.01,
    schedules: bool = True,
    exact: bool = True,
    stateful: bool = False,
) -> tuple[Any, tuple[str, ...]]:
    """Train two epochs of three batches with dropout and a shuffled order; return the model and what was reported."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from ckstore.integrations.lightning import CkstoreCheckpointIO, ExactResume

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=rate)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return ([optimizer], [scheduler]) if schedules else optimizer

    torch.manual_seed(seed)
    model = Model()
    store = Store.open_or_init(folder / "store")
    io = CkstoreCheckpointIO(store)
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=2,
        max_steps=stop_at,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[io],
        callbacks=[ModelCheckpoint(every_n_train_steps=every, save_top_k=-1), *([ExactResume()] if exact else [])],
    )
    data: Any = torch.randn(12, 8, generator=torch.Generator().manual_seed(2))
    kind: Any = torch.utils.data.DataLoader
    if stateful:
        kind = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    loader = kind(data, batch_size=batch_size, shuffle=True)
    trainer.fit(model, loader, ckpt_path="ckstore:latest-valid" if resume else None)
    check_store(store.path)
    return model, io.resumed_inexactly
