"""The encoding of a compacted checkpoint. Source: docs/format/encoded-1.md, "A compacted checkpoint"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, NoReturn

from ckstore.errors import DamagedBlob
from ckstore.model.canonical import SAFE_INT, canonical_text
from ckstore.model.digest import Algorithm, is_digest
from ckstore.model.document import check_format, check_requires, refuse
from ckstore.model.manifest.manifest import MANIFEST_FORMAT, MANIFEST_VERSION, Manifest
from ckstore.model.manifest.stored import BLOB_MAX_BYTES, BlobRecord, StoredForm

ENCODED = "encoded-1"
HEAD_BYTES = 128
"""The number of bytes at the start of a ``manifest.json`` that suffice to recognize an encoding, with any hash
algorithm. Every manifest is longer."""
PATH_MOST = 8
"""The maximum number of encoded blobs on a path. A path is a blob, a base of the blob, a base of that base, and so on.

Reading a blob with the longest path takes about this many times as long as reading a blob whose bases are plain.
"""


class EncodedBlob(NamedTuple):
    """A blob that is stored in encoded form."""

    nbytes: int  # size of the plain blob
    file: int  # index into the files of the directory
    bases: tuple[str, ...]  # plain digests of the blobs that are needed to decode it


@dataclass(frozen=True, slots=True)
class Encoding(StoredForm):
    """The stored forms of the blobs of a checkpoint."""

    is_plain: ClassVar[bool] = False
    checkpoint: str  # id of the checkpoint
    # Every blob in the directory, plain or in encoded form, with the digest of its own bytes.
    files: tuple[BlobRecord, ...]
    encoded: Mapping[str, EncodedBlob]  # digest of a plain blob -> its encoded form
    place: int = 0  # position of the checkpoint in its run, which determines the base
    # Additional encoded forms, only on a remote. Their bases need not be in `files` or `encoded`.
    links: Mapping[str, EncodedBlob] = field(default_factory=dict)

    def stored(self, blobs: Sequence[BlobRecord]) -> Sequence[BlobRecord]:
        """See `StoredForm`."""
        del blobs
        return self.files

    def has_file(self, digest: str) -> bool:
        """See `StoredForm`."""
        return digest not in self.encoded

    def path(self, digest: str) -> list[str]:
        """See `StoredForm`."""
        found, waiting = dict.fromkeys([digest]), [digest]
        while waiting:
            form = self.encoded.get(waiting.pop())
            for base in () if form is None else form.bases:
                if base not in found:
                    found[base] = None
                    waiting.append(base)
        return list(found)

    def file_of(self, digest: str) -> str:
        """See `StoredForm`."""
        form = self.encoded.get(digest)
        return digest if form is None else self.files[form.file].digest

    def document(self, checkpoint: str, plain: bytes, algorithm: Algorithm) -> bytes:
        """See `StoredForm`."""
        del plain
        return render(replace(self, checkpoint=checkpoint), algorithm)


def encoding_of(manifest: Manifest) -> Encoding | None:
    """Return the encoding of a checkpoint, or None if all of its blobs are plain."""
    return manifest.form if isinstance(manifest.form, Encoding) else None


def render(encoding: Encoding, algorithm: Algorithm) -> bytes:
    """Return the ``manifest.json`` of a compacted checkpoint."""
    members: dict[str, Any] = {
        "checkpoint": encoding.checkpoint,
        "encoded": _items(encoding.encoded),
        "files": [list(file) for file in encoding.files],
        "format": MANIFEST_FORMAT,
        "place": encoding.place,
        "requires": [ENCODED],
        "version": MANIFEST_VERSION,
    }
    if encoding.links:
        members["links"] = _items(encoding.links)
    body = canonical_text(members).encode("ascii")
    return b'{"digest":"' + algorithm.digest(body).encode("ascii") + b'","manifest":' + body + b"}\n"


def _items(forms: Mapping[str, EncodedBlob]) -> list[list[Any]]:
    return [[digest, form.nbytes, form.file, list(form.bases)] for digest, form in sorted(forms.items())]


def begins_one(head: bytes) -> bool:
    """Return whether a ``manifest.json`` that starts with `head` is an encoding whose first member is `checkpoint`."""
    return b'"manifest":{"checkpoint":"' in head


def is_encoding(members: Mapping[str, Any]) -> bool:
    """Return whether the members of a ``manifest.json`` are those of an encoding."""
    requires = members.get("requires")
    return isinstance(requires, list) and ENCODED in requires


def parse(members: Mapping[str, Any], where: str) -> Encoding:
    """Parse and check an encoding, without comparing it with its manifest."""
    check_format(members, MANIFEST_FORMAT, MANIFEST_VERSION, where)
    check_requires(members.get("requires"), (ENCODED,), where)
    checkpoint, place = members.get("checkpoint"), members.get("place", 0)
    if not isinstance(checkpoint, str) or not is_digest(checkpoint):
        refuse(where, "checkpoint", "an id", checkpoint)
    if type(place) is not int or not 0 <= place <= SAFE_INT:
        refuse(where, "place", "an integer from 0", place)
    files = []
    for item in _array(members, "files", where):
        if not (type(item) is list and len(item) == 2 and is_digest(item[0]) and _is_size(item[1])):
            refuse(where, "a file", "[digest, size]", item)
        files.append(BlobRecord(*item))
    plain = {file.digest for file in files}
    if len(plain) != len(files):
        refuse(where, "files", "each file once", len(files))
    encoded: dict[str, EncodedBlob] = {}
    for item in _array(members, "encoded", where):
        digest, form = _encoded(item, len(files), where)
        if digest in encoded or digest in plain:
            refuse(where, "encoded", "each blob once, and in one form", digest)
        encoded[digest] = form
    links = dict(_encoded(item, len(files), where) for item in _array({"links": [], **members}, "links", where))
    found = Encoding(checkpoint, tuple(files), encoded, place, links)
    _check_paths(found, plain, where)
    return found


def _array(members: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = members.get(name)
    if not isinstance(value, list):
        refuse(where, name, "an array", value)
    return value


def _encoded(item: Any, file_count: int, where: str) -> tuple[str, EncodedBlob]:
    digest, nbytes, file, bases = item if type(item) is list and len(item) == 4 else (None,) * 4
    if (
        is_digest(digest)
        and type(nbytes) is int
        and _is_size(nbytes)
        and type(file) is int
        and 0 <= file < file_count
        and isinstance(bases, list)
        and all(map(is_digest, bases))
    ):
        return str(digest), EncodedBlob(nbytes, file, tuple(bases))
    return refuse(where, "an encoded blob", "[digest, size, file, bases]", item)


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= BLOB_MAX_BYTES


def _check_paths(encoding: Encoding, plain: set[str], where: str) -> None:
    """Refuse loops, missing bases and paths that are too long; each blob is checked once."""
    depths: dict[str, int] = dict.fromkeys(plain, 0)
    for start in encoding.encoded:
        # Use a list instead of recursion, because a hostile chain may be as long as the document.
        waiting: list[str] = [start]
        while waiting:
            digest = waiting[-1]
            if digest in depths and depths[digest] >= 0:
                waiting.pop()
                continue
            form = encoding.encoded.get(digest)
            if form is None:
                refuse(where, "encoded", "each base in files or in encoded", digest)
            unknown = [base for base in form.bases if depths.get(base, -1) < 0]
            if not unknown:
                depths[digest] = 1 + max((depths[base] for base in form.bases), default=0)
                if depths[digest] > PATH_MOST:
                    refuse(where, "encoded", f"at most {PATH_MOST} encoded blobs on a path", depths[digest])
                continue
            if digest in depths:  # it was visited before and its bases are still unknown, so there is a loop
                refuse(where, "encoded", "no blob that is decoded with itself", digest)
            depths[digest] = -1
            waiting += unknown


def check_fits(encoding: Encoding, blobs: Iterable[BlobRecord], manifest_id: str, where: str) -> None:
    """Raise `DamagedBlob` if an encoding does not belong to a manifest."""
    if manifest_id != encoding.checkpoint:
        _unfit(where, f"it belongs to the checkpoint {encoding.checkpoint}, but its manifest has the id {manifest_id}")
    sizes = dict(encoding.files)
    for blob in blobs:
        form = encoding.encoded.get(blob.digest)
        nbytes = sizes.get(blob.digest) if form is None else form.nbytes
        if nbytes != blob.nbytes:
            _unfit(where, f"it has {nbytes or 'no'} bytes of blob {blob.digest}, expected {blob.nbytes}")


def _unfit(where: str, problem: str) -> NoReturn:
    raise DamagedBlob(f"{where}: {problem}")
