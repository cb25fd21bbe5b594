"""Give each blob of a checkpoint its form: encoded against a newer checkpoint, or alone, or plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckstore.codecs.container import fits
from ckstore.ops.compact.encode import encode, header_of, stage
from ckstore.ops.compact.forms import Form, Forms
from ckstore.ops.compact.match import Layout, Matcher, check_covers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ckstore.model.manifest.manifest import BlobRecord, Manifest
    from ckstore.objects.staging import Staging
    from ckstore.ops.compact.encode import BlobSource
    from ckstore.ops.compact.orphans import Orphans


@dataclass(slots=True)
class Encoded:
    """How many blobs were encoded, their sizes, and the sizes of their encoded forms."""

    count: int = 0
    plain_bytes: int = 0
    encoded_bytes: int = 0


class Settler:
    """Settles forms, and stages the encoded files."""

    def __init__(self, forms: Forms, orphans: Orphans) -> None:
        self.encoded = Encoded()  # what was encoded
        self._forms = forms
        self._orphans = orphans

    def settle(
        self, manifest: Manifest, mine: Collection[str], base: Manifest, source: BlobSource, staging: Staging
    ) -> None:
        """Give each blob in `mine` its form; masters before their copies, which are decoded with them."""
        todo = [
            i
            for i, blob in enumerate(manifest.blobs)
            if blob.digest in mine and not self._forms.is_settled(blob.digest)
        ]
        if not todo:
            return
        matcher = Matcher(Layout(manifest), Layout(base), source.sample, self._forms.may_be_base)
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
            # Asked before the work with the least that it may be: most paths that are too long are so by their bases.
            near = fits(header) and self._forms.allows(blob.digest, blob.nbytes, 0, header.bases, masters)
            if not (near and header.bases) and self._keep_over_hole(manifest, blob):
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
        self._forms.keep_plain([blob])

    def _keep_over_hole(self, manifest: Manifest, blob: BlobRecord) -> bool:
        """Keep what a blob is decoded with of checkpoints that are gone, where no base is near enough; True if so."""
        # Against a base it takes less than its present form with the piece of the hole; without one more than half of
        # its plain bytes, nearly always (docs/adr/0020). So nothing is encoded only to compare.
        form = None if manifest.encoding is None else manifest.encoding.encoded.get(blob.digest)
        if manifest.encoding is None or form is None:
            return False
        encoding, path = manifest.encoding, manifest.encoding.path(blob.digest)
        cost = encoding.files[form.file].nbytes + sum(self._orphans.share(digest) for digest in path[1:])
        if cost > blob.nbytes / 2:
            return False
        for digest in reversed(path[1:]):
            if self._orphans.share(digest) and not self._forms.is_settled(digest):
                self._forms.adopt_one(encoding, digest)
        return self._keep_present(manifest, blob, form.bases, ())

    def _keep_present(self, manifest: Manifest, blob: BlobRecord, bases: Iterable[str], masters: Iterable[str]) -> bool:
        """Keep the encoded form that a checkpoint has, if it is against the base that is wanted; True if so."""
        form = None if manifest.encoding is None else manifest.encoding.encoded.get(blob.digest)
        if manifest.encoding is None or form is None or not set(form.bases) <= set(bases):
            return False
        file = manifest.encoding.files[form.file]
        if not self._forms.allows(blob.digest, blob.nbytes, file.nbytes, form.bases, masters):
            return False
        self._forms.put(blob.digest, Form(blob.nbytes, file, form.bases))
        return True
