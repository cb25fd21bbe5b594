"""A tiny run of Lightning, in this process or as a program: STORE FOLDER CKPT_PATH KILL_AT [save_last]."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ckstore import Store
from tests.integrations.tiny_trainer import kill_when_step_is_published

STEPS = 8


def fit(
    store: Store | None,
    folder: Path,
    ckpt_path: str | None = None,
    *,
    background: bool = False,
    more: Any = None,
    seed: int = 1,
    io: Any = None,
    callbacks: Sequence[dict[str, Any]] = (),
    lr: float = 0.01,
    batch_size: int = 4,
    fails_at: int | None = None,
    options: dict[str, Any] | None = None,
    **checkpoint: Any,
) -> tuple[Any, Any]:
    """Train; return the model and the callback, or the list of those that `callbacks` give the options of.

    `options` are those of the Trainer; the step `fails_at` raises an error.
    """
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from ckstore.integrations.lightning import CkstoreCheckpointIO, ExactResume

    class Model(LightningModule):
        def __init__(self, width: int = 8, more: Any = None) -> None:
            super().__init__()
            self.save_hyperparameters(ignore="more" if more is None else None)
            self.layer = torch.nn.Linear(width, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            if self.global_step == fails_at:
                raise RuntimeError("out of memory")
            loss = self.layer(batch).square().sum()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=lr)

    torch.manual_seed(seed)
    model = Model(more=more)
    # Two batches an epoch, so that each save is at the end of one: Lightning does not resume a plain loader inside.
    data: Any = torch.randn(8, 8, generator=torch.Generator().manual_seed(2))
    common = {"dirpath": folder / "ckpt", "every_n_train_steps": 2, "save_top_k": -1}
    made: list[Any] = [ModelCheckpoint(**{**common, **checkpoint, **one}) for one in callbacks or [{}]]
    plugin = io if io is not None or store is None else CkstoreCheckpointIO(store, background=background)
    trainer = Trainer(
        default_root_dir=folder,
        **{"max_steps": STEPS, **(options or {})},
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[] if plugin is None else [plugin],
        callbacks=[*made, ExactResume()],
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=batch_size), ckpt_path=ckpt_path)
    return model, made if callbacks else made[0]


def main(store: str, folder: str, ckpt_path: str, kill_at: str, *more: str) -> None:
    import torch

    import ckstore.ops.save.save  # noqa: F401 - it has its own name for what is replaced

    torch.set_num_threads(1)
    if int(kill_at):
        kill_when_step_is_published(int(kill_at))
    fit(Store.open(store), Path(folder), ckpt_path or None, save_last="save_last" in more)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
