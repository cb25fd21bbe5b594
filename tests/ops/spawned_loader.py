"""Run by `test_pickled`: a spawned worker of a data loader reads slices of a checkpoint that its parent has open."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, Dataset

from ckstore import OpenCheckpoint, Store


class Rows(Dataset[int]):
    def __init__(self, checkpoint: OpenCheckpoint, count: int) -> None:
        self.checkpoint, self.count = checkpoint, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return int(self.checkpoint.slice("w")[index : index + 1].sum())


def first(rows: list[int]) -> int:
    return rows[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    store = Store.init(sys.argv[1])
    store.save({"w": torch.arange(12).reshape(4, 3)}, 1)
    with store.open_checkpoint() as opened:
        loader = DataLoader(
            Rows(opened, 4), batch_size=1, num_workers=1, multiprocessing_context="spawn", collate_fn=first
        )
        print(list(loader))
