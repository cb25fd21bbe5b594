"""The mark of a damaged checkpoint, the content of ``damaged.json``. Source: docs/format/v1.md, "damaged.json"."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json, fits_json, quoted
from ckstore.model.digest import is_digest
from ckstore.model.document import parse_object

MARK_VERSION = 1
# A file of this size can hold 1,000 entries, each with 1,900 bytes of names and a sentence of 1,900 bytes.
MARK_MAX_BYTES = 4 * 2**20
_FORMAT = "ckstore-damaged"
_NAMES_MOST = 100
_ENTRIES_MOST = 1000
_NAMES_MAX_BYTES = _WHAT_MAX_BYTES = 1900
"""Limits of the names and of the sentence of an entry, in bytes of JSON. See `MARK_MAX_BYTES`."""


@dataclass(frozen=True, slots=True)
class MarkEntry:
    """The damage to one blob, or to the manifest or the directory.

    The names and the text are shortened so that they fit in a mark.
    """

    blob: str  # digest of the blob; empty for the manifest or the directory itself
    names: tuple[str, ...]  # values of the checkpoint that need the damaged bytes, at most 100
    what: str  # one sentence for users

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _first_names(self.names))
        what = self.what
        while len(as_json := quoted(what)) > _WHAT_MAX_BYTES:
            what = what[: min(_WHAT_MAX_BYTES, len(what) * 3 // 4)]
        object.__setattr__(self, "what", json.loads(as_json))  # JSON joins two surrogates into one character


def _first_names(names: tuple[str, ...]) -> tuple[str, ...]:
    room = _NAMES_MAX_BYTES
    kept = []
    for name in names[:_NAMES_MOST]:
        room -= len(quoted(name)) + 1
        if room < 0:
            break
        # A name that JSON would change is omitted, because a mark must not contain wrong names.
        if fits_json(name):
            kept.append(name)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Mark:
    """The damage that reads and verifications found in a checkpoint, and the time of the last finding."""

    found: str  # UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``
    entries: tuple[MarkEntry, ...]  # empty if the file cannot be parsed; the checkpoint is still marked

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", self.entries[:_ENTRIES_MOST])

    def joined(self, other: Mark) -> Mark:
        """Return a mark with the entries of this mark and of `other`, which must be the newer mark."""
        kept = [entry for entry in self.entries if entry not in other.entries]
        return Mark(other.found, (*kept, *other.entries))

    def without(self, blob: str) -> Mark:
        """Return the mark without the damage of a blob that was healed."""
        return Mark(self.found, tuple(entry for entry in self.entries if entry.blob != blob))

    def render(self) -> bytes:
        """Return the content of ``damaged.json``."""
        damage = [{"blob": entry.blob, "names": list(entry.names), "what": entry.what} for entry in self.entries]
        document = {"format": _FORMAT, "version": MARK_VERSION, "found": self.found, "damage": damage}
        return canonical_json(document) + b"\n"


def parse_mark(data: bytes, where: str) -> Mark:
    """Parse ``damaged.json``.

    If the content is unreadable, the result is a mark without entries, because the file exists.
    """
    try:
        members = parse_object(data, where=where)
    # Do not ignore an unreadable mark, since damaged bytes would then be loaded as valid.
    except BadInput:
        return Mark("", ())
    damage = members.get("damage")
    entries = [_entry(item) for item in damage] if isinstance(damage, list) else []
    found = members.get("found")
    return Mark(found if isinstance(found, str) else "", tuple(entry for entry in entries if entry is not None))


def _entry(item: Any) -> MarkEntry | None:
    if not isinstance(item, dict):
        return None
    blob, names, what = item.get("blob"), item.get("names"), item.get("what")
    if not isinstance(blob, str) or not isinstance(names, list) or not isinstance(what, str):
        return None
    if blob and not is_digest(blob):
        return None
    return MarkEntry(blob, tuple(name for name in names if isinstance(name, str)), what)
