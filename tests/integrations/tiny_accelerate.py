"""A tiny loop with accelerate, in this process or as a program: STORE FOLDER REF KILL_AT."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ckstore import Store
from tests.integrations.tiny_trainer import kill_when_step_is_published

EPOCHS = 4


def train(
    store: Store,
    folder: Path,
    ref: str = "",
    batch_size: int = 4,
    *,
    seedable: bool = False,
    lr: float = 1e-3,
    **project: Any,
) -> tuple[Any, Any]:
    """Train an epoch a step; return the model and what `install` returned.

    With `seedable` the order of the data follows from a seed and the epoch, else from torch's own generator.
    """
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed

    from ckstore.integrations.accelerate import install

    if not torch.distributed.is_initialized():
        for state in (AcceleratorState, GradientState, PartialState):
            state._shared_state.clear()
    set_seed(1)
    configuration = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, **project)
    loading = DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = Accelerator(cpu=True, project_config=configuration, dataloader_config=loading)
    kept = install(accelerator, store)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8, generator=torch.Generator().manual_seed(2)))
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first, loss = 0, torch.zeros(())
    if ref:
        accelerator.load_state(f"ckstore:{ref}")
        first = configuration.iteration
    for epoch in range(first, EPOCHS):
        if seedable:
            loader.set_epoch(epoch)
        for (rows,) in loader:
            optimizer.zero_grad()
            loss = model(rows).square().sum()
            accelerator.backward(loss)
            optimizer.step()
        accelerator.save_state(metrics={"loss": loss.item()})
        assert kept.last is None or kept.last.step == epoch
    return accelerator.unwrap_model(model), kept


def main(store: str, folder: str, ref: str, kill_at: str) -> None:
    import torch

    import ckstore.ops.save.save  # noqa: F401 - it has its own name for what is replaced

    torch.set_num_threads(1)
    if int(kill_at):
        kill_when_step_is_published(int(kill_at))
    train(Store.open(store), Path(folder), ref)
    sys.stdout.flush()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
