"""Train with a plain loop: python plain_loop.py STORE. Stop it at any time, and run it again to resume."""

import sys

import torch

from ckstore import RetentionPolicy, Store
from ckstore.training import capture, restore

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1))
parts = {"model": model, "optimizer": optimizer, "dataloader": loader}

store = Store.open_or_init(sys.argv[1])
store.config.retention = RetentionPolicy(keep_last=3)

epoch = 0
if store.latest() is not None:
    report = restore(store, "latest-valid", **parts)
    print(report)
    epoch = report.extra["epoch"]

while epoch < 5:
    for (rows,) in loader:
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
    epoch += 1
    # After a rollback, an epoch is saved again and replaces the older checkpoint.
    state = capture(**parts, extra={"epoch": epoch})
    store.save(state, step=epoch, metrics={"loss": loss.item()}, if_exists="replace")
    print(f"epoch {epoch}, loss {loss.item():.3f}")
