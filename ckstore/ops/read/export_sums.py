"""Compute SHA-256 sums of the files of an export, and a record with the checkpoint and a digest of each tensor.

The sums and digests are computed from the bytes that an export reads back from the disk before it is published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from ckstore.errors import BadInput
from ckstore.model.digest import ALGORITHMS, RunningDigest

Sums = bool | Literal["model-signing"]
"""Whether an export has sums. ``model-signing`` also writes the statement that OpenSSF's model-signing tool signs."""
SUMS_NAME = "SHA256SUMS"
STATEMENT_NAME = "model.intoto.json"
_SIGNATURE_NAME = "model.sig"
# The model-signing tool also ignores these names when it signs a directory. When it verifies a directory, any other
# file without a sum is an error.
_GIT_NAMES = (".git", ".gitattributes", ".github", ".gitignore")
RECORD_NAME = "ckstore-export.json"
RECORD_FORMAT = "ckstore-export"
RECORD_VERSION = 1
# The algorithm for the digests of regions, which show where a file differs. SHA-256 decides whether the file differs.
ALGORITHM = ALGORITHMS["xxh3_128"]


def beside_file(name: str) -> tuple[str, str]:
    """Return the names of the record and of the sums file next to an export that is one file."""
    return f"{name}.{RECORD_NAME}", f"{name}.sha256"


class FileRegion(NamedTuple):
    """Bytes of a file that belong to one tensor."""

    name: str
    start: int
    stop: int


class DigestSpan(NamedTuple):
    """A range of bytes in a file, and the running digest to which these bytes are added."""

    start: int
    stop: int
    digest: RunningDigest


class SpanDigests:
    """Adds the bytes of a file to the digests of spans. Bytes and spans must be in the order of the file."""

    def __init__(self, spans: Iterable[DigestSpan]) -> None:
        self._spans = iter(spans)
        self._next = next(self._spans, None)

    def add(self, at: int, data: memoryview) -> None:
        """Add the bytes of the file from `at`."""
        stop = at + len(data)
        while self._next is not None and self._next.start < stop:
            span = self._next
            span.digest.update(data[max(span.start, at) - at : min(span.stop, stop) - at])
            if span.stop > stop:
                return
            self._next = next(self._spans, None)


class FileSum:
    """Computes the SHA-256 of a file and the digests of its regions while it is read from the beginning."""

    def __init__(self, regions: Sequence[FileRegion]) -> None:
        self._sha256 = hashlib.sha256()
        self._spans = [DigestSpan(one.start, one.stop, ALGORITHM.start()) for one in regions]
        self._digests = SpanDigests(self._spans)

    def add(self, at: int, data: memoryview) -> None:
        """Add the bytes of the file from `at`."""
        self._sha256.update(data)
        self._digests.add(at, data)

    def sha256(self) -> str:
        """Return the SHA-256 of the file, in hexadecimal digits."""
        return self._sha256.hexdigest()

    def digests(self) -> list[str]:
        """Return the digest of each region."""
        return [ALGORITHM.digest_of_parts(span.digest) for span in self._spans]


class ExportSums:
    """The SHA-256 of each file of one export, and the digests of its tensors.

    Attributes:
        signs: Whether the statement of model-signing is also requested.
    """

    @classmethod
    def asked_for(cls, sums: Sums) -> ExportSums | None:
        """Return a new object for the sums, or None if the caller requests no sums."""
        if sums not in (True, False, "model-signing"):
            raise BadInput(f"sums must be True, False or 'model-signing', got {sums!r}")
        return cls(signs=sums == "model-signing") if sums else None

    def __init__(self, *, signs: bool = False) -> None:
        self.signs = signs
        self._sha256: dict[str, str] = {}
        self._files: dict[str, object] = {}

    def add(self, name: str, nbytes: int, found: FileSum, regions: Sequence[FileRegion]) -> None:
        """Record the sums of a file that was read from the disk."""
        self._sha256[name] = found.sha256()
        named = [[*region, digest] for region, digest in zip(regions, found.digests(), strict=True)]
        self._files[name] = {"nbytes": nbytes, "regions": named}

    def record(self, checkpoint: str, checkpoint_id: str) -> Iterator[bytes]:
        """Yield the content of the record in parts, one line for each file."""
        head = {
            "format": RECORD_FORMAT,
            "version": RECORD_VERSION,
            "checkpoint": checkpoint,
            "id": checkpoint_id,
        }
        yield (json.dumps(head)[:-1] + ',\n"files": {').encode("ascii")
        for i, (name, file) in enumerate(self._files.items()):
            yield f"{',' if i else ''}\n  {json.dumps(name)}: {json.dumps(file)}".encode("ascii")
        yield b"\n}\n}\n"

    def sums(self) -> bytes:
        """Return the content of the sums file, in the format of ``sha256sum``."""
        lines = []
        for name, digest in self._sha256.items():
            escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
            mark = "\\" if escaped != name else ""
            lines.append(f"{mark}{digest}  {escaped}\n".encode("utf-8", "surrogateescape"))
        return b"".join(lines)

    def statement(self, model: str) -> bytes:
        """Return the unsigned in-toto statement about all files added so far, as OpenSSF's model-signing writes it.

        The statement follows the class `Payload` in ``model_signing/_signing/signing.py`` of model-signing 1.1.1.
        """
        files = sorted(self._sha256.items(), key=lambda item: PurePosixPath(item[0]))
        root = hashlib.sha256(b"".join(bytes.fromhex(digest) for _, digest in files)).hexdigest()
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": model, "digest": {"sha256": root}}],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": [STATEMENT_NAME, _SIGNATURE_NAME, *_GIT_NAMES],
                },
                "resources": [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in files],
            },
        }
        return (json.dumps(statement, indent=2) + "\n").encode("ascii")
