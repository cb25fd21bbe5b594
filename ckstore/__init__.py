"""ckstore: a content-addressed, versioned store for checkpoints of PyTorch training.

Importing it imports neither torch nor SQLite; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.version import __version__

if TYPE_CHECKING:
    from ckstore.errors import CkstoreError, CkstoreWarning
    from ckstore.model.diff import Diff
    from ckstore.model.doctor.finding import DoctorReport, Finding
    from ckstore.model.export_report import ExportedFile, ExportReport
    from ckstore.model.info import CheckpointInfo
    from ckstore.model.pins import Pin
    from ckstore.model.reindex_report import Incomplete, ReindexReport, RelinkReport
    from ckstore.model.retention import Best, RetentionPlan, RetentionPolicy
    from ckstore.model.retention_report import RetentionReport
    from ckstore.model.tag import Tag
    from ckstore.model.usage import Usage, Use
    from ckstore.model.verify_report import Damage, VerifyReport
    from ckstore.ops.load import LoadReport
    from ckstore.ops.open_checkpoint import OpenCheckpoint
    from ckstore.store import Store, open_checkpoint

__all__ = [
    "Best",
    "CheckpointInfo",
    "CkstoreError",
    "CkstoreWarning",
    "Damage",
    "Diff",
    "DoctorReport",
    "ExportReport",
    "ExportedFile",
    "Finding",
    "Incomplete",
    "LoadReport",
    "OpenCheckpoint",
    "Pin",
    "ReindexReport",
    "RelinkReport",
    "RetentionPlan",
    "RetentionPolicy",
    "RetentionReport",
    "Store",
    "Tag",
    "Usage",
    "Use",
    "VerifyReport",
    "__version__",
    "open_checkpoint",
]

_HOMES = {
    "Best": "ckstore.model.retention",
    "CheckpointInfo": "ckstore.model.info",
    "CkstoreError": "ckstore.errors",
    "CkstoreWarning": "ckstore.errors",
    "Damage": "ckstore.model.verify_report",
    "Diff": "ckstore.model.diff",
    "DoctorReport": "ckstore.model.doctor.finding",
    "ExportReport": "ckstore.model.export_report",
    "ExportedFile": "ckstore.model.export_report",
    "Finding": "ckstore.model.doctor.finding",
    "Incomplete": "ckstore.model.reindex_report",
    "LoadReport": "ckstore.ops.load",
    "OpenCheckpoint": "ckstore.ops.open_checkpoint",
    "Pin": "ckstore.model.pins",
    "ReindexReport": "ckstore.model.reindex_report",
    "RelinkReport": "ckstore.model.reindex_report",
    "RetentionPlan": "ckstore.model.retention",
    "RetentionPolicy": "ckstore.model.retention",
    "RetentionReport": "ckstore.model.retention_report",
    "Store": "ckstore.store",
    "Tag": "ckstore.model.tag",
    "Usage": "ckstore.model.usage",
    "Use": "ckstore.model.usage",
    "VerifyReport": "ckstore.model.verify_report",
    "open_checkpoint": "ckstore.store",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
