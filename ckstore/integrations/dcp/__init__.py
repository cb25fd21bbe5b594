"""`torch.distributed.checkpoint` with a store. See docs/how-to/ranks.md."""

from __future__ import annotations

from ckstore.integrations.dcp.calls import async_save, load, save
from ckstore.integrations.dcp.reader import CkstoreReader
from ckstore.integrations.dcp.writer import CkstoreWriter

__all__ = ["CkstoreReader", "CkstoreWriter", "async_save", "load", "save"]
