"""Capture and restore the complete state of a training run, and report the aspects that will not continue exactly.

Importing this module does not import torch.
"""

from ckstore.training.capture import capture
from ckstore.training.conditions import Conditions
from ckstore.training.elastic_sampler import ElasticSampler
from ckstore.training.history import ImportReport, import_history
from ckstore.training.provenance import provenance
from ckstore.training.restore import ResumeReport, restore
from ckstore.training.resume_check.certificate import CheckedPoint, CheckReport, FirstDifference
from ckstore.training.resume_check.check import check
from ckstore.training.resume_check.loop import EPOCH_END, Loop
from ckstore.training.signals import should_stop, stop_on_signals
from ckstore.training.stateful_dataset import StatefulDataset

__all__ = [
    "EPOCH_END",
    "CheckReport",
    "CheckedPoint",
    "Conditions",
    "ElasticSampler",
    "FirstDifference",
    "ImportReport",
    "Loop",
    "ResumeReport",
    "StatefulDataset",
    "capture",
    "check",
    "import_history",
    "provenance",
    "restore",
    "should_stop",
    "stop_on_signals",
]
