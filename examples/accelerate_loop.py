"""Train with accelerate: python accelerate_loop.py STORE PROJECT_DIR, or accelerate launch. Run it again to resume."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed

from ckstore import RetentionPolicy, Store
from ckstore.integrations.accelerate import install

set_seed(0)
project = ProjectConfiguration(sys.argv[2], automatic_checkpoint_naming=True, total_limit=1)
accelerator = Accelerator(cpu=True, project_config=project)
store = Store.open_or_init(sys.argv[1])
store.config.retention = RetentionPolicy(keep_last=3)
install(accelerator, store)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
)
if store.latest() is not None:
    accelerator.load_state("ckstore:latest-valid")
for _epoch in range(project.iteration, 3):
    for (rows,) in loader:
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.save_state(metrics={"loss": loss.item()})
