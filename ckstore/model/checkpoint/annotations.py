"""Annotations, the content of ``annotations.json`` in a checkpoint, without I/O. Source: docs/format/v1.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json, encode_metric, fits_json
from ckstore.model.document import check_created, parse_document, refuse, shown
from ckstore.model.manifest.describe import describe
from ckstore.model.manifest.info import Note
from ckstore.model.manifest.parse import read_metrics

ANNOTATIONS_VERSION = 1
_FORMAT = "ckstore-annotations"


@dataclass(frozen=True, slots=True)
class Annotations:
    """Metrics and notes that were added to a checkpoint after it was saved."""

    # Name -> value. A metric here overrides the metric of the same name in the manifest.
    metrics: dict[str, int | float] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()  # in the order in which they were written

    def render(self) -> bytes:
        """Return the content of ``annotations.json``."""
        members = {
            "format": _FORMAT,
            "version": ANNOTATIONS_VERSION,
            "metrics": {name: encode_metric(value) for name, value in self.metrics.items()},
            "notes": [{"created": note.created, "text": note.text} for note in self.notes],
        }
        return canonical_json(members) + b"\n"

    def with_more(self, more: Annotations) -> Annotations:
        """Return these annotations with `more` added; metrics of `more` replace metrics of the same name."""
        return Annotations({**self.metrics, **more.metrics}, (*self.notes, *more.notes))


def to_add(metrics: Mapping[str, Any] | None, note: object, created: str) -> Annotations:
    """Return the annotations that a caller wants to add, checked and copied."""
    checked = describe(metrics, None, "", None).metrics
    if note is None:
        if not checked:
            raise BadInput(
                "there is nothing to annotate",
                hint="give metrics={name: number} or note=text",
                command_hint="give --metric NAME=VALUE or --note TEXT",
            )
        return Annotations(checked)
    if not isinstance(note, str) or not note or not fits_json(note):
        raise BadInput(f"note: wanted a text that is not empty, got {shown(note)}")
    return Annotations(checked, (Note(created, note),))


def parse_annotations(data: bytes, where: str) -> Annotations:
    """Parse ``annotations.json``."""
    members = parse_document(data, _FORMAT, ANNOTATIONS_VERSION, where)
    notes = members.get("notes")
    if not isinstance(notes, list):
        refuse(where, "notes", "an array", notes)
    metrics = read_metrics(members.get("metrics"), where)
    read = []
    for note in notes:
        if not isinstance(note, dict) or not isinstance(note.get("text"), str):
            refuse(where, "notes", "objects with created and text", note)
        read.append(Note(check_created(note.get("created"), where), note["text"]))
    return Annotations(metrics, tuple(read))
