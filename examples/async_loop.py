"""A loop that saves in the background: python async_loop.py STORE. Stop it at any moment and start it again."""

import sys

import torch

from ckstore import RetentionPolicy, Store
from ckstore.training import capture, restore

torch.manual_seed(0)
torch.set_num_threads(1)
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
    # The call waits for the save before this one, raises its error if it failed, copies the state and returns.
    # replace: after a rollback an epoch is saved once more.
    state = capture(**parts, extra={"epoch": epoch})
    pending = store.save_async(state, step=epoch, metrics={"loss": loss.item()}, if_exists="replace")
    print(f"epoch {epoch}, loss {loss.item():.3f}, copied {pending.total_bytes} bytes")

# Only so that a failure of the last save is told: the saver would finish it without this process as well.
if not store.background.wait(600):
    print("the last save has not ended after ten minutes; the saver goes on with it")
