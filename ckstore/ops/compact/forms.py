"""In which form each plain blob is to be stored, and what a reader goes through to decode it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ckstore.model.manifest.encoding import PATH_MOST
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.model.manifest.stored import EncodedBlob, Encoding

# A load reads and decodes the whole path: with more than this a dense tensor takes longer than it saves.
PATH_TIMES = 2


class Form(NamedTuple):
    """A plain blob in encoded form."""

    nbytes: int  # size of the plain blob
    file: BlobRecord  # the encoded blob
    bases: tuple[str, ...]  # digests of the plain blobs that it is decoded with


class Forms:
    """The form of each plain blob that was met, by its digest. What is settled stays so, or is forgotten again."""

    def __init__(self) -> None:
        self._encoded: dict[str, Form] = {}
        self._plain: dict[str, int] = {}

    def is_settled(self, digest: str) -> bool:
        """Whether the form of a blob is known."""
        return digest in self._encoded or digest in self._plain

    def keep_plain(self, blobs: Iterable[BlobRecord]) -> None:
        """Settle blobs as plain, unless they are settled."""
        for blob in blobs:
            if blob.digest not in self._encoded:
                self._plain[blob.digest] = blob.nbytes

    def put(self, digest: str, form: Form) -> None:
        """Settle a blob as encoded."""
        self._encoded[digest] = form

    def forget(self, digests: Iterable[str]) -> None:
        """Take back what was settled of some blobs."""
        for digest in digests:
            self._encoded.pop(digest, None)
            self._plain.pop(digest, None)

    def adopt(self, manifest: Manifest) -> None:
        """Settle what a checkpoint has as it has it, unless it is settled."""
        encoding = manifest.encoding
        if encoding is None:
            self.keep_plain(manifest.blobs)
            return
        for digest in encoding.encoded:
            if not self.is_settled(digest):
                self.adopt_one(encoding, digest)
        used = {encoding.files[form.file].digest for form in encoding.encoded.values()}
        self.keep_plain(file for file in encoding.files if file.digest not in used)

    def adopt_one(self, encoding: Encoding, digest: str) -> None:
        """Settle one blob as it is stored in the directory of a checkpoint."""
        form = encoding.encoded.get(digest)
        if form is None:
            self._plain[digest] = dict(encoding.files)[digest]
        else:
            self._encoded[digest] = Form(form.nbytes, encoding.files[form.file], form.bases)

    def may_be_base(self, digest: str, of: str) -> bool:
        """Whether a blob may be what another one is decoded with: known, not decoded with it, and not too deep."""
        path = self.path([digest])
        return of not in path and all(map(self.is_settled, path)) and self._depth([digest]) < PATH_MOST

    def path(self, digests: Iterable[str]) -> dict[str, Form | None]:
        """Return blobs and all that they are decoded with; None: it is plain."""
        found: dict[str, Form | None] = {}
        waiting = list(digests)
        while waiting:
            digest = waiting.pop()
            if digest not in found:
                form = found[digest] = self._encoded.get(digest)
                waiting += () if form is None else form.bases
        return found

    def allows(self, digest: str, nbytes: int, file_nbytes: int, bases: Iterable[str], masters: Iterable[str]) -> bool:
        """Whether a blob may be encoded so: not through itself, nor by too long a path, nor through too many bytes."""
        # `masters` are those of which it is a copy: a load reads them anyway.
        path = self.path(bases)
        if digest in path or any(not self.is_settled(one) for one in path):
            return False
        depth = 1 + self._depth(bases)
        path_bytes = file_nbytes + sum(form.file.nbytes for form in path.values() if form is not None)
        plain_bytes = nbytes + sum(self._nbytes(master) for master in masters)
        return depth <= PATH_MOST and path_bytes <= PATH_TIMES * plain_bytes

    def _nbytes(self, digest: str) -> int:
        form = self._encoded.get(digest)
        return self._plain.get(digest, 0) if form is None else form.nbytes

    def _depth(self, digests: Iterable[str]) -> int:
        """Return how many encoded blobs are one behind the other; each is looked at once for each place on a path."""
        depth, level = 0, {*digests}
        while depth <= PATH_MOST and (forms := [self._encoded[one] for one in level if one in self._encoded]):
            depth += 1
            level = {base for form in forms for base in form.bases}
        return depth

    def form(self, digest: str) -> Form | None:
        """Return the encoded form of a blob; None: it is plain, or not settled."""
        return self._encoded.get(digest)

    def encoding(self, checkpoint: str, blobs: Iterable[BlobRecord], place: int) -> Encoding:
        """Return how the directory of a checkpoint with these blobs is to be."""
        sizes = dict(blobs)
        path = self.path(sizes)
        files: dict[str, BlobRecord] = {}
        for digest, form in path.items():
            file = BlobRecord(digest, sizes.get(digest) or self._plain[digest]) if form is None else form.file
            files[file.digest] = file
        listed = tuple(sorted(files.values()))
        numbers = {file.digest: number for number, file in enumerate(listed)}
        encoded = {
            digest: EncodedBlob(form.nbytes, numbers[form.file.digest], form.bases)
            for digest, form in sorted(path.items())
            if form is not None
        }
        return Encoding(checkpoint, listed, encoded, place)
