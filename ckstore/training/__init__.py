"""The whole state of a training run: what to capture, how to restore it, and what will not continue exactly.

Importing it imports no torch.
"""

from ckstore.training.capture import capture
from ckstore.training.conditions import Conditions
from ckstore.training.elastic_sampler import ElasticSampler
from ckstore.training.history import ImportReport, import_history
from ckstore.training.provenance import provenance
from ckstore.training.restore import ResumeReport, restore
from ckstore.training.signals import should_stop, stop_on_signals
from ckstore.training.stateful_dataset import StatefulDataset

__all__ = [
    "Conditions",
    "ElasticSampler",
    "ImportReport",
    "ResumeReport",
    "StatefulDataset",
    "capture",
    "import_history",
    "provenance",
    "restore",
    "should_stop",
    "stop_on_signals",
]
