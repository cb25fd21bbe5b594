"""The JSON forms of what commands print. Their keys are a promise.

Each key: docs/reference/command-line.md.
"""

from __future__ import annotations

import math
from typing import Any

from ckstore.model.canonical import decimal_of_int
from ckstore.model.manifest.info import CheckpointInfo

SAFE_INT = 2**53


def checkpoint_document(info: CheckpointInfo) -> dict[str, Any]:
    """Return a checkpoint as ``log`` and ``show`` print it."""
    return {
        "id": info.id,
        "run": info.run,
        "step": info.step,
        "sequence": info.sequence,
        "created": info.created,
        "logical_bytes": info.logical_bytes,
        "new_bytes": info.new_bytes,
        "reused_bytes": info.reused_bytes,
        "leaf_count": info.leaf_count,
        "content": info.content,
        "parent": info.parent,
        "message": info.message,
        "metrics": plain(info.metrics),
        "metadata": plain(info.metadata),
        "tags": list(info.tags),
        "durable": info.durable,
        "damaged": info.damaged,
    }


def notes_document(info: CheckpointInfo) -> list[dict[str, str]]:
    """Return the notes of a checkpoint as ``show`` and ``annotate`` print them."""
    return [{"created": note.created, "text": note.text} for note in info.notes]


def plain(value: Any) -> Any:
    """Return `value` with numbers that JSON lacks as strings: nan, inf, integers beyond 2^53."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > SAFE_INT:
        return decimal_of_int(value)
    return value
