"""ckstore: a content-addressed, versioned store for checkpoints of PyTorch training.

Importing it imports neither torch nor SQLite; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.version import __version__

if TYPE_CHECKING:
    from ckstore.errors import CkstoreError, CkstoreWarning
    from ckstore.model.checkpoint.pins import Pin
    from ckstore.model.checkpoint.tag import Tag
    from ckstore.model.doctor.finding import DoctorFinding, DoctorReport
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.reports.diff import Diff
    from ckstore.model.reports.export_report import ExportedFile, ExportReport
    from ckstore.model.reports.reindex_report import Incomplete, ReindexReport, RelinkReport
    from ckstore.model.reports.retention_report import RetentionReport
    from ckstore.model.reports.usage import Usage, Use
    from ckstore.model.reports.verify_report import Damage, VerifyReport
    from ckstore.model.settings.retention import Best, RetentionPlan, RetentionPolicy
    from ckstore.ops.read.load import LoadReport
    from ckstore.ops.read.open_checkpoint import OpenCheckpoint
    from ckstore.store import Store, open_checkpoint

__all__ = [
    "Best",
    "CheckpointInfo",
    "CkstoreError",
    "CkstoreWarning",
    "Damage",
    "Diff",
    "DoctorFinding",
    "DoctorReport",
    "ExportReport",
    "ExportedFile",
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
    "Best": "ckstore.model.settings.retention",
    "CheckpointInfo": "ckstore.model.manifest.info",
    "CkstoreError": "ckstore.errors",
    "CkstoreWarning": "ckstore.errors",
    "Damage": "ckstore.model.reports.verify_report",
    "Diff": "ckstore.model.reports.diff",
    "DoctorReport": "ckstore.model.doctor.finding",
    "ExportReport": "ckstore.model.reports.export_report",
    "ExportedFile": "ckstore.model.reports.export_report",
    "DoctorFinding": "ckstore.model.doctor.finding",
    "Incomplete": "ckstore.model.reports.reindex_report",
    "LoadReport": "ckstore.ops.read.load",
    "OpenCheckpoint": "ckstore.ops.read.open_checkpoint",
    "Pin": "ckstore.model.checkpoint.pins",
    "ReindexReport": "ckstore.model.reports.reindex_report",
    "RelinkReport": "ckstore.model.reports.reindex_report",
    "RetentionPlan": "ckstore.model.settings.retention",
    "RetentionPolicy": "ckstore.model.settings.retention",
    "RetentionReport": "ckstore.model.reports.retention_report",
    "Store": "ckstore.store",
    "Tag": "ckstore.model.checkpoint.tag",
    "Usage": "ckstore.model.reports.usage",
    "Use": "ckstore.model.reports.usage",
    "VerifyReport": "ckstore.model.reports.verify_report",
    "open_checkpoint": "ckstore.store",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
