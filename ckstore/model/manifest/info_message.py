"""The information on a checkpoint as JSON, for messages between processes of one version of ckstore."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ckstore.model.canonical import encode_metric
from ckstore.model.manifest.describe import decoded_metadata, encode_metadata
from ckstore.model.manifest.info import CheckpointInfo, Note, SaveCounters


def decode_metrics(metrics: dict[str, Any]) -> dict[str, int | float]:
    """Return metrics from JSON, in which values that are not finite are strings."""
    return {name: float(value) if isinstance(value, str) else value for name, value in metrics.items()}


def info_json(info: CheckpointInfo) -> dict[str, Any]:
    """Return the information on a checkpoint as JSON."""
    members = {name: getattr(info, name) for name in info.__slots__}
    members["metrics"] = {name: encode_metric(value) for name, value in info.metrics.items()}
    members["metadata"] = encode_metadata(info.metadata)
    members["notes"] = [[note.created, note.text] for note in info.notes]
    members["counters"] = None if info.counters is None else asdict(info.counters)
    return members


def info_from(members: dict[str, Any]) -> CheckpointInfo:
    """Return the information on a checkpoint from a result of `info_json`."""
    members["metrics"] = decode_metrics(members["metrics"])
    members["metadata"] = decoded_metadata(members["metadata"])
    members["notes"] = tuple(Note(*note) for note in members["notes"])
    if members["counters"] is not None:
        members["counters"] = SaveCounters(**members["counters"])
    for name in ("tags", "warnings", "unchanged", "remotes"):
        members[name] = tuple(members[name])
    return CheckpointInfo(**members)
