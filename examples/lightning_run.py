"""Train with Lightning: python lightning_run.py STORE FOLDER. Run it again to resume."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from ckstore import Store
from ckstore.integrations.lightning import CkstoreCheckpointIO, ExactResume


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _index):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


store = Store.open_or_init(sys.argv[1])
trainer = Trainer(
    default_root_dir=sys.argv[2],
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    plugins=[CkstoreCheckpointIO(store)],
    callbacks=[ModelCheckpoint(save_top_k=-1), ExactResume()],
)
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
resume = "ckstore:latest-valid" if store.latest() is not None else None
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=resume)
