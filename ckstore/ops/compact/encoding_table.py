"""Decide how each blob is stored: encoded against other blobs, compressed without a base, or plain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ckstore.codecs.container import fits
from ckstore.model.manifest.encoding import PATH_MOST, EncodedBlob, Encoding, encoding_of
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.ops.compact.encode import encode, header_of, stage
from ckstore.ops.compact.match import Matcher, StorageLayout, check_covers

if TYPE_CHECKING:
    from collections.abc import Collection

    from ckstore.objects.staging import Staging
    from ckstore.ops.compact.encode import BlobSource
    from ckstore.ops.compact.shares import Orphans

# The maximum total size of the files in the chain of a blob, as a multiple of the plain size of the blob. A load reads
# and decodes the whole chain. With a higher limit, a load of a dense tensor would lose more time to decoding than it
# would gain from the smaller files.
PATH_TIMES = 2


class Form(NamedTuple):
    """The encoded form of a blob."""

    nbytes: int  # size of the plain blob in bytes
    file: BlobRecord  # the encoded file
    bases: tuple[str, ...]  # digests of the plain blobs that are needed to decode it


class EncodingTable:
    """The forms of blobs that are decided, by the digest of the plain blob.

    A form is plain or encoded (`Form`). It is *settled* once it is decided, and then does not change until `forget`
    removes it. The *chain* of a blob consists of the blob, its bases, their bases, and so on.
    """

    def __init__(self) -> None:
        self._encoded: dict[str, Form] = {}
        self._plain: dict[str, int] = {}

    def is_settled(self, digest: str) -> bool:
        """Whether the form of a blob is settled."""
        return digest in self._encoded or digest in self._plain

    def keep_plain(self, blobs: Iterable[BlobRecord]) -> None:
        """Settle blobs as plain, unless they are settled as encoded."""
        for blob in blobs:
            if blob.digest not in self._encoded:
                self._plain[blob.digest] = blob.nbytes

    def put(self, digest: str, form: Form) -> None:
        """Settle a blob in an encoded form."""
        self._encoded[digest] = form

    def forget(self, digests: Iterable[str]) -> None:
        """Remove the settled forms of some blobs."""
        for digest in digests:
            self._encoded.pop(digest, None)
            self._plain.pop(digest, None)

    def adopt(self, manifest: Manifest) -> None:
        """Settle the present form of each blob of a checkpoint, unless a form of the blob is already settled."""
        encoding = encoding_of(manifest)
        if encoding is None:
            self.keep_plain(manifest.blobs)
            return
        for digest in encoding.encoded:
            if not self.is_settled(digest):
                self.adopt_one(encoding, digest)
        used = {encoding.files[form.file].digest for form in encoding.encoded.values()}
        self.keep_plain(file for file in encoding.files if file.digest not in used)

    def adopt_one(self, encoding: Encoding, digest: str) -> None:
        """Settle the form that one blob has in the directory of a checkpoint."""
        form = encoding.encoded.get(digest)
        if form is None:
            self._plain[digest] = dict(encoding.files)[digest]
        else:
            self._encoded[digest] = Form(form.nbytes, encoding.files[form.file], form.bases)

    def may_be_base(self, digest: str, of: str) -> bool:
        """Whether a blob may be a base of the blob `of`.

        All blobs in the chain of the base must be settled, `of` must not be among them, and the chain must not be too
        long.
        """
        path = self.path([digest])
        return of not in path and all(map(self.is_settled, path)) and self._depth([digest]) < PATH_MOST

    def path(self, digests: Iterable[str]) -> dict[str, Form | None]:
        """Return the encoded forms of all blobs in the chains of these blobs, by digest.

        Each blob that is plain or not settled has None instead of a form.
        """
        found: dict[str, Form | None] = {}
        waiting = list(digests)
        while waiting:
            digest = waiting.pop()
            if digest not in found:
                form = found[digest] = self._encoded.get(digest)
                waiting += () if form is None else form.bases
        return found

    def allows(self, digest: str, nbytes: int, file_nbytes: int, bases: Iterable[str], masters: Iterable[str]) -> bool:
        """Whether a blob may be encoded with these bases.

        All blobs in the chains of the bases must be settled, and the blob must not be among them. The chain of the
        blob must not be too long or too large.

        `masters` are the blobs of which the blob is a half-precision copy. A load reads the masters anyway, so their
        plain sizes raise the limit for the total size of the files in the chain.
        """
        path = self.path(bases)
        if digest in path or any(not self.is_settled(one) for one in path):
            return False
        depth = 1 + self._depth(bases)
        path_bytes = file_nbytes + sum(form.file.nbytes for form in path.values() if form is not None)
        plain_bytes = nbytes
        for master in masters:
            form = self._encoded.get(master)
            plain_bytes += self._plain.get(master, 0) if form is None else form.nbytes
        return depth <= PATH_MOST and path_bytes <= PATH_TIMES * plain_bytes

    def _depth(self, digests: Iterable[str]) -> int:
        """Return the number of encoded blobs in the longest chain that begins with one of these blobs."""
        depth, level = 0, {*digests}
        while depth <= PATH_MOST and (forms := [self._encoded[one] for one in level if one in self._encoded]):
            depth += 1
            level = {base for form in forms for base in form.bases}
        return depth

    def form(self, digest: str) -> Form | None:
        """Return the encoded form of a blob, or None if it is plain or not settled."""
        return self._encoded.get(digest)

    def encoding(self, checkpoint: str, blobs: Iterable[BlobRecord], place: int) -> Encoding:
        """Return the encoding of a checkpoint's new directory, in which these blobs have their settled forms.

        `place` is the position of the checkpoint in its run (docs/format/encoded-1.md, "Chains").
        """
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


@dataclass(slots=True)
class EncodingTotals:
    """The number of encoded blobs, their total plain size, and the total size of their encoded files."""

    count: int = 0
    plain_bytes: int = 0
    encoded_bytes: int = 0


class EncodingPlanner:
    """Settles the forms of blobs, and stages the encoded files."""

    def __init__(self, forms: EncodingTable, orphans: Orphans) -> None:
        self.encoded = EncodingTotals()  # of the blobs encoded so far
        self._forms = forms
        self._orphans = orphans

    def settle(
        self, manifest: Manifest, mine: Collection[str], base: Manifest, source: BlobSource, staging: Staging
    ) -> None:
        """Settle the form of each blob in `mine`. `base` is the newer checkpoint against which they are encoded.

        Half-precision copies are settled after their masters, because the masters are bases of the copies.
        """
        todo = [
            i
            for i, blob in enumerate(manifest.blobs)
            if blob.digest in mine and not self._forms.is_settled(blob.digest)
        ]
        if not todo:
            return
        matcher = Matcher(StorageLayout(manifest), StorageLayout(base), source.sample, self._forms.may_be_base)
        for index in sorted(todo, key=matcher.is_copy):
            self._one(manifest, index, matcher, source, staging)

    def _one(self, manifest: Manifest, index: int, matcher: Matcher, source: BlobSource, staging: Staging) -> None:
        blob = manifest.blobs[index]
        for alone in (False, True):
            segments = matcher.segments(index, alone=alone)
            check_covers(segments, blob.nbytes)
            header = header_of(blob, segments)
            masters = {s.base for s in segments if s.prediction != "same"}
            if self._keep_present(manifest, blob, header.bases, masters):
                return
            # Before encoding, check the limits for a file of 0 bytes, because the chains of the bases alone are often
            # too large.
            near = fits(header) and self._forms.allows(blob.digest, blob.nbytes, 0, header.bases, masters)
            # If the blob would now be encoded without a base, keep its present form if this form takes at most half of
            # the plain size. Without a base, the blob nearly always takes more (docs/adr/0020), so do not encode it
            # only to compare the sizes.
            if not (near and header.bases) and self._keep_over_hole(manifest, blob, most_bytes=blob.nbytes // 2):
                return
            if not near:
                continue
            data = encode(source, blob, header)
            if len(data) < blob.nbytes and self._forms.allows(
                blob.digest, blob.nbytes, len(data), header.bases, masters
            ):
                file = stage(source, staging, blob, data)
                self._forms.put(blob.digest, Form(blob.nbytes, file, header.bases))
                self.encoded.count += 1
                self.encoded.plain_bytes += blob.nbytes
                self.encoded.encoded_bytes += file.nbytes
                return
            if not header.bases:
                break
        if self._keep_over_hole(manifest, blob, most_bytes=blob.nbytes):
            return
        if not manifest.form.has_file(blob.digest):
            # This directory has the blob only in its present encoded form, which is not worth keeping.
            staging.put(blob.digest, memoryview(source.read(blob.digest)))
        self._forms.keep_plain([blob])

    def _keep_over_hole(self, manifest: Manifest, blob: BlobRecord, *, most_bytes: int) -> bool:
        """Keep the present encoded form of a blob if it takes at most `most_bytes`, even if some bases are orphans.

        An orphan is a blob that no checkpoint lists any more, but that is needed to decode other blobs
        (`shares.Orphans`). The form takes the size of the blob's file, plus the blob's share of the file of each orphan
        in its chain.

        Returns:
            Whether the present form was kept.
        """
        encoding = encoding_of(manifest)
        form = None if encoding is None else encoding.encoded.get(blob.digest)
        if encoding is None or form is None:
            return False
        path = encoding.path(blob.digest)
        cost = encoding.files[form.file].nbytes + sum(self._orphans.share(digest) for digest in path[1:])
        if cost > most_bytes:
            return False
        for digest in reversed(path[1:]):
            if self._orphans.share(digest) and not self._forms.is_settled(digest):
                self._forms.adopt_one(encoding, digest)
        return self._keep_present(manifest, blob, form.bases, ())

    def _keep_present(self, manifest: Manifest, blob: BlobRecord, bases: Iterable[str], masters: Iterable[str]) -> bool:
        """Keep the present encoded form of a blob if its bases are among `bases` and the limits allow it.

        Returns:
            Whether the present form was kept.
        """
        encoding = encoding_of(manifest)
        form = None if encoding is None else encoding.encoded.get(blob.digest)
        if encoding is None or form is None or not set(form.bases) <= set(bases):
            return False
        file = encoding.files[form.file]
        if not self._forms.allows(blob.digest, blob.nbytes, file.nbytes, form.bases, masters):
            return False
        self._forms.put(blob.digest, Form(blob.nbytes, file, form.bases))
        return True
