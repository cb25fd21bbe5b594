"""Writes the files of this folder, which are of torch 2.6, and of those below it: ``python write.py FOLDER``.

A folder below has the number of the torch that wrote what is in it; torch 2.9 loaded the files of torch 2.6 and saved
them again. What torch 2.10 to 2.14 write is byte for byte what 2.8 does, but for the form of before 1.6.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool", "complex64")
NEWER_DTYPES = ("float8_e4m3fn", "float8_e5m2", "uint16")
"""Those that torch cannot load from the form of before 1.6 with ``weights_only``."""


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    """Return a model, its optimizer and its scheduler after a step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler


def everything(dtypes: tuple[str, ...]) -> dict[Any, Any]:
    """Return a state of all that a weights-only load knows."""
    base = torch.arange(12.0).reshape(3, 4)
    return {
        "dtypes": {name: torch.ones(3).to(getattr(torch, name)) for name in dtypes},
        "base": base,
        "row": base[1],
        "transposed": base.t(),
        "expanded": base[:1].expand(5, 4),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "ordered": OrderedDict(a=1, b=[None, True, (1.5, -0.0)]),
        "text": "é" * 5000,
        "bytes": bytes(range(256)) * 2,
        "bytearray": bytearray(b"ab"),
        "set": {1, 2},
        "complex": 1 - 2j,
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda:1"),
        "big": -(2**70),
        5: {"numbers": list(range(2000))},
    }


def files() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return what each file holds, and the options of torch.save."""
    model, optimizer, scheduler = trained()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - what trainers keep
    rng = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}  # noqa: NPY002
    lightning = {
        "epoch": 1,
        "global_step": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 2}}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": torch.tensor(0.5), "kth_value": None}},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
    }
    legacy = {"_use_new_zipfile_serialization": False}
    return {
        "everything.pt": (everything(DTYPES + NEWER_DTYPES), {}),
        "everything-legacy.pt": (everything(DTYPES), legacy),
        "pytorch_model.bin": (model.state_dict(), {}),
        "pytorch_model-legacy.bin": (model.state_dict(), legacy),
        "optimizer.pt": (optimizer.state_dict(), {}),
        "scheduler.pt": (scheduler.state_dict(), {}),
        "rng_state.pth": (rng, {}),
        "lightning.ckpt": (lightning, {}),
    }


def main() -> None:
    """Write them."""
    folder = Path(sys.argv[1])
    for name, (state, options) in files().items():
        torch.save(state, folder / name, **options)


if __name__ == "__main__":
    main()
