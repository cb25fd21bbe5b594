"""The store's record of the contents of a remote: ``remotes/<name>.json``. Source: docs/format/v1.md, "remotes/".

The record avoids requests, and lets an eviction skip reading back some blobs. A push uses it to send blobs again in
which a verification found wrong bytes. The record is never the only reason for a deletion: an eviction lists the remote
again, and uses an entry only if the remote still lists the recorded version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from ckstore.errors import CkstoreError
from ckstore.fs import files, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import parse_document, refuse
from ckstore.model.seal import read, to_write
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import Layout
from ckstore.remote.objects import ObjectEntry

_FORMAT = "ckstore-remote-seen"
_VERSION = 1
_MAX_BYTES = 512 * 2**20
_MOST = 50_000
"""The maximum number of entries of each kind. If there are more, the oldest are removed.

Without the entry of a blob, an eviction reads the blob back. Without the entry of a document, a push sends it again.
"""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}\Z")

How = Literal["sent", "read", "damaged"]
"""``sent``: this store sent the bytes. ``read``: the bytes were read back and have the digest. ``damaged``: the bytes
were read back and have another digest."""


class ObjectVersion(NamedTuple):
    """A version of an object whose content is known."""

    # Size, time of modification and version tag (ETag), as the remote listed them.
    nbytes: int
    modified: str
    tag: str
    how: How  # why its content is known, and whether it is right

    def is_still(self, listed: ObjectEntry) -> bool:
        """Whether a remote lists exactly this version."""
        return (self.nbytes, self.modified, self.tag) == (listed.nbytes, listed.modified.isoformat(), listed.tag)


def seen(listed: ObjectEntry, how: How) -> ObjectVersion:
    """Return the record entry of a listed object."""
    return ObjectVersion(listed.nbytes, listed.modified.isoformat(), listed.tag, how)


@dataclass(slots=True)
class RemoteRecord:
    """The contents of one remote, according to earlier requests."""

    blobs: dict[str, ObjectVersion] = field(default_factory=dict)  # digest -> the version whose bytes are known
    # Key of a small document -> digest of the content that was pushed, and the tag of the resulting version.
    documents: dict[str, tuple[str, str]] = field(default_factory=dict)
    # Id of a checkpoint -> time at which its manifest was written. The remote then had all of its blobs.
    checkpoints: dict[str, str] = field(default_factory=dict)
    blob_count: int = 0  # number of blobs in the last full listing

    def is_damaged(self, digest: str, listed: ObjectEntry) -> bool:
        """Whether a verification found wrong bytes in this version of a blob."""
        seen = self.blobs.get(digest)
        return seen is not None and seen.how == "damaged" and seen.is_still(listed)

    def render(self) -> bytes:
        """Return the content of the file.

        It has only the newest entries of each kind, because every push rewrites the whole file.
        """
        blobs = sorted(self.blobs.items(), key=lambda item: item[1].modified)[-_MOST:]
        checkpoints = sorted(self.checkpoints.items(), key=lambda item: item[1])[-_MOST:]
        members = {
            "format": _FORMAT,
            "version": _VERSION,
            "blobs": {digest: list(one) for digest, one in blobs},
            "documents": {key: list(one) for key, one in [*self.documents.items()][-_MOST:]},
            "checkpoints": dict(checkpoints),
            "blob_count": self.blob_count,
        }
        return canonical_json(members) + b"\n"


def _parse(data: bytes, where: str) -> RemoteRecord:
    members = parse_document(data, _FORMAT, _VERSION, where)
    blobs, documents, checkpoints = (members.get(name, {}) for name in ("blobs", "documents", "checkpoints"))
    for name, value in (("blobs", blobs), ("documents", documents), ("checkpoints", checkpoints)):
        if not isinstance(value, dict):
            refuse(where, name, "an object", value)
    blob_count = members.get("blob_count", 0)
    if not isinstance(blob_count, int) or isinstance(blob_count, bool):
        refuse(where, "blob_count", "a whole number", blob_count)
    versions = {digest: _seen(one, where) for digest, one in blobs.items() if is_digest(digest)}
    for pair in documents.values():
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
            refuse(where, "documents", "[digest, tag]", pair)
    return RemoteRecord(
        versions,
        {key: (digest, tag) for key, (digest, tag) in documents.items()},
        {id: _time(when, where) for id, when in checkpoints.items() if is_digest(id)},
        blob_count,
    )


def _seen(value: Any, where: str) -> ObjectVersion:
    is_form = isinstance(value, list) and len(value) == 4 and isinstance(value[0], int)
    if not is_form or value[3] not in get_args(How):
        refuse(where, "blobs", "[size, time, tag, sent, read or damaged]", value)
    return ObjectVersion(value[0], _time(value[1], where), str(value[2]), value[3])


def _time(value: Any, where: str) -> str:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        refuse(where, "a time", "in ISO 8601 format", value)
    return str(value)


def _place(layout: Layout, name: str) -> StorePath:
    return layout.remotes / f"{name if _NAME.match(name) and not name.startswith('.') else 'other'}.json"


def read_record(layout: Layout, name: str) -> RemoteRecord:
    """Return the record of a remote. If its file is missing or unreadable, return an empty record.

    An empty record is safe. It only causes more requests, and a blob with wrong bytes is not sent again until another
    verification finds it.
    """
    path = _place(layout, name)
    try:
        return read(files.read_file(path, most_bytes=_MAX_BYTES), _parse, str(path))
    except (FileNotFoundError, NotADirectoryError, CkstoreError):
        return RemoteRecord()


def write_record(layout: Layout, name: str, record: RemoteRecord) -> None:
    """Save the record of a remote, durably."""
    path = _place(layout, name)
    data = to_write(record, _parse, most_bytes=_MAX_BYTES, where=str(path))
    links.make_directory(layout.remotes)
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.remotes) as fd:
        atomic_file.replace_file(layout, lock, fd, path.name, data)
