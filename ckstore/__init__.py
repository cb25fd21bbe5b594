"""ckstore: a content-addressed, versioned store for checkpoints of PyTorch training.

Importing it imports neither torch nor SQLite; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.version import __version__

if TYPE_CHECKING:
    from ckstore.errors import CkstoreError
    from ckstore.model.info import CheckpointInfo
    from ckstore.ops.load import LoadReport
    from ckstore.ops.open_checkpoint import OpenCheckpoint
    from ckstore.store import Store, open_checkpoint

__all__ = [
    "CheckpointInfo",
    "CkstoreError",
    "LoadReport",
    "OpenCheckpoint",
    "Store",
    "__version__",
    "open_checkpoint",
]

_HOMES = {
    "CheckpointInfo": "ckstore.model.info",
    "CkstoreError": "ckstore.errors",
    "LoadReport": "ckstore.ops.load",
    "OpenCheckpoint": "ckstore.ops.open_checkpoint",
    "Store": "ckstore.store",
    "open_checkpoint": "ckstore.store",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
