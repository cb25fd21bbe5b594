"""ckstore: a content-addressed, versioned store for checkpoints of PyTorch training.

Importing it imports neither torch nor SQLite; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.version import __version__

if TYPE_CHECKING:
    from ckstore.errors import (
        AmbiguousRef,
        BadInput,
        CannotLoad,
        CannotStore,
        CatalogUnavailable,
        CkstoreError,
        CkstoreWarning,
        DamagedBlob,
        DoesNotFit,
        InsufficientSpace,
        InUse,
        MissingRanks,
        NewerFormat,
        NoSuchFile,
        NoSuchRef,
        NotUnchanged,
        OtherHash,
        Protected,
        RankError,
        RankFailed,
        RankMismatch,
        SaveAbandoned,
        SaveFailed,
        StateChanged,
        StepExists,
        StoreNotFound,
        UnknownOutcome,
        UnsafePlace,
    )
    from ckstore.model.checkpoint.pins import Pin
    from ckstore.model.checkpoint.runs import RunSummary
    from ckstore.model.checkpoint.tag import Tag
    from ckstore.model.doctor.finding import DoctorFinding, DoctorReport
    from ckstore.model.manifest.counters import SaveCounters
    from ckstore.model.manifest.files import FileChange, FileSummary
    from ckstore.model.manifest.info import CheckpointInfo, Note
    from ckstore.model.reports.checkout_report import CheckoutReport
    from ckstore.model.reports.diff import Diff, Difference, DiffLeaf, LeafChange, PlainChange
    from ckstore.model.reports.export_report import ExportedFile, ExportReport
    from ckstore.model.reports.gc_report import GcPlan, GcReport, NextToFree
    from ckstore.model.reports.held import DeletedFile, HeldBlob, Holder, LinkedBlob, PlannedBlob
    from ckstore.model.reports.progress import Progress
    from ckstore.model.reports.reindex_report import Incomplete, ReindexReport, RelinkReport
    from ckstore.model.reports.retention_report import RetentionReport, Skipped
    from ckstore.model.reports.usage import CheckpointUsage, Usage, Use
    from ckstore.model.reports.verify_report import Damage, Repair, StoreFinding, Unrepaired, VerifyReport
    from ckstore.model.saver.status import SaveEvent, SaverStatus
    from ckstore.model.settings.retention import Best, RetentionPolicy
    from ckstore.model.settings.retention_plan import PlanEntry, RetentionPlan
    from ckstore.model.settings.settings import StoreSettings
    from ckstore.objects.publish import IfExists
    from ckstore.ops.config import StoreConfig
    from ckstore.ops.read.checkout import LinkMode
    from ckstore.ops.read.export_formats import ExportFormat
    from ckstore.ops.read.load import Select
    from ckstore.ops.read.load_into import LoadReport
    from ckstore.ops.read.open_checkpoint import LeafSlice, LeafSummary, OpenCheckpoint
    from ckstore.ops.refs.follow import Follower
    from ckstore.saver.client.pending import PendingSave
    from ckstore.store import RefLike, Store, open_checkpoint
    from ckstore.tensors.named.safe_classes import add_safe_globals, get_safe_globals

__all__ = [
    "AmbiguousRef",
    "BadInput",
    "Best",
    "CannotLoad",
    "CannotStore",
    "CatalogUnavailable",
    "CheckoutReport",
    "CheckpointInfo",
    "CheckpointUsage",
    "CkstoreError",
    "CkstoreWarning",
    "Damage",
    "DamagedBlob",
    "DeletedFile",
    "Diff",
    "DiffLeaf",
    "Difference",
    "DoctorFinding",
    "DoctorReport",
    "DoesNotFit",
    "ExportFormat",
    "ExportReport",
    "ExportedFile",
    "FileChange",
    "FileSummary",
    "Follower",
    "GcPlan",
    "GcReport",
    "HeldBlob",
    "Holder",
    "IfExists",
    "InUse",
    "Incomplete",
    "InsufficientSpace",
    "LeafChange",
    "LeafSlice",
    "LeafSummary",
    "LinkMode",
    "LinkedBlob",
    "LoadReport",
    "MissingRanks",
    "NewerFormat",
    "NextToFree",
    "NoSuchFile",
    "NoSuchRef",
    "NotUnchanged",
    "Note",
    "OpenCheckpoint",
    "OtherHash",
    "PendingSave",
    "Pin",
    "PlainChange",
    "PlanEntry",
    "PlannedBlob",
    "Progress",
    "Protected",
    "RankError",
    "RankFailed",
    "RankMismatch",
    "RefLike",
    "ReindexReport",
    "RelinkReport",
    "Repair",
    "RetentionPlan",
    "RetentionPolicy",
    "RetentionReport",
    "RunSummary",
    "SaveAbandoned",
    "SaveCounters",
    "SaveEvent",
    "SaveFailed",
    "SaverStatus",
    "Select",
    "Skipped",
    "StateChanged",
    "StepExists",
    "Store",
    "StoreConfig",
    "StoreFinding",
    "StoreNotFound",
    "StoreSettings",
    "Tag",
    "UnknownOutcome",
    "Unrepaired",
    "UnsafePlace",
    "Usage",
    "Use",
    "VerifyReport",
    "__version__",
    "add_safe_globals",
    "get_safe_globals",
    "open_checkpoint",
]

_HOMES = {
    "ckstore.errors": "AmbiguousRef BadInput CannotLoad CannotStore CatalogUnavailable CkstoreError CkstoreWarning "
    "DamagedBlob DoesNotFit InUse InsufficientSpace MissingRanks NewerFormat NoSuchFile NoSuchRef "
    "NotUnchanged OtherHash Protected RankError RankFailed RankMismatch SaveAbandoned SaveFailed "
    "StateChanged StepExists StoreNotFound UnknownOutcome UnsafePlace",
    "ckstore.model.checkpoint.pins": "Pin",
    "ckstore.model.checkpoint.runs": "RunSummary",
    "ckstore.model.checkpoint.tag": "Tag",
    "ckstore.model.doctor.finding": "DoctorFinding DoctorReport",
    "ckstore.model.manifest.files": "FileChange FileSummary",
    "ckstore.model.manifest.counters": "SaveCounters",
    "ckstore.model.manifest.info": "CheckpointInfo Note",
    "ckstore.model.reports.checkout_report": "CheckoutReport",
    "ckstore.model.reports.diff": "Diff DiffLeaf Difference LeafChange PlainChange",
    "ckstore.model.reports.export_report": "ExportReport ExportedFile",
    "ckstore.model.reports.gc_report": "GcPlan GcReport NextToFree",
    "ckstore.model.reports.held": "DeletedFile HeldBlob Holder LinkedBlob PlannedBlob",
    "ckstore.model.reports.progress": "Progress",
    "ckstore.model.reports.reindex_report": "Incomplete ReindexReport RelinkReport",
    "ckstore.model.reports.retention_report": "RetentionReport Skipped",
    "ckstore.model.reports.usage": "CheckpointUsage Usage Use",
    "ckstore.model.reports.verify_report": "Damage Repair StoreFinding Unrepaired VerifyReport",
    "ckstore.model.saver.status": "SaveEvent SaverStatus",
    "ckstore.model.settings.retention": "Best RetentionPolicy",
    "ckstore.model.settings.retention_plan": "PlanEntry RetentionPlan",
    "ckstore.model.settings.settings": "StoreSettings",
    "ckstore.objects.publish": "IfExists",
    "ckstore.ops.read.checkout": "LinkMode",
    "ckstore.ops.read.export_formats": "ExportFormat",
    "ckstore.ops.read.load": "Select",
    "ckstore.ops.read.load_into": "LoadReport",
    "ckstore.ops.read.open_checkpoint": "LeafSlice LeafSummary OpenCheckpoint",
    "ckstore.ops.refs.follow": "Follower",
    "ckstore.saver.client.pending": "PendingSave",
    "ckstore.store": "RefLike Store open_checkpoint",
    "ckstore.ops.config": "StoreConfig",
    "ckstore.tensors.named.safe_classes": "add_safe_globals get_safe_globals",
}
"""Module -> the public names that it defines."""


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names.split():
            import importlib

            return getattr(importlib.import_module(module), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return __all__
