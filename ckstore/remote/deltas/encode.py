"""Encode a checkpoint for a push, as differences from local checkpoints that are also on the remote.

Source: docs/format/remote-v1.md, "Checkpoints". The parent, or otherwise the nearest checkpoint, gives the smallest
differences. If this base makes the chain of bases too long, a blob is encoded against a checkpoint with a shorter
chain, or pushed plain. A small difference from the nearest checkpoint is then also pushed, as a link for readers that
have that checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from ckstore.codecs import container
from ckstore.codecs.container import Header
from ckstore.codecs.tiles import TILE_BYTES
from ckstore.errors import BytesElsewhere, DamagedBlob, InUse, NoSuchRef, SaveFailed
from ckstore.fs import files
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.encoding import EncodedBlob, Encoding, render
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES, MANIFEST_MAX_BYTES, BlobRecord
from ckstore.model.manifest.stored import StoredForm
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.compact.encode import BlobSource, encode, header_of
from ckstore.ops.compact.encoding_table import EncodingTable, Form
from ckstore.ops.compact.match import Matcher, StorageLayout
from ckstore.ops.context import Context
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import infos
from ckstore.remote.deltas.spool import Delta, Spool
from ckstore.remote.keys import Place

# The maximum size of an encoded blob, as a share of its plain size. A smaller saving is not worth the cost: the remote
# must keep the base, and every reader must download and decode two blobs.
_MOST_SHARE = 1 / 2
# The errors of a base that was deleted or is incomplete. Another base is then used, or none.
_NOT_HERE = (NoSuchRef, DamagedBlob, InUse, BytesElsewhere)
_TRIED_MOST = 2
# The number of nearest checkpoints that are searched for one with a shorter chain.
_LOOKED_AT = 128
# The maximum size of a link, as a share of the plain size. A link is stored in addition to the form that every reader
# can decode.
_LINK_SHARE = 1 / 8


def delta_of(
    context: Context,
    directory: CheckpointDirectory,
    form_of: Callable[[Place], StoredForm],
    there: Collection[Place],
    sizes: Mapping[str, Collection[int]],
) -> Delta | None:
    """Encode an open checkpoint against one of the checkpoints in `there`. Return None if that is not worthwhile.

    `form_of` returns how the remote stores a checkpoint. Damaged local blobs are neither encoded nor used as bases.
    """
    bases = _nearest_first(context, directory, there)
    if not bases:
        return None
    with ExitStack() as held:
        found = None
        work = _Encoder(context, directory, bases, held)
        try:
            if work.begin(bases[0], form_of, sizes):
                for index in sorted(work.todo(), key=work.is_copy):
                    work.settle(index)
                found = work.result()
        finally:
            if found is None:
                work.spool.close()
        return found


def _nearest_first(context: Context, directory: CheckpointDirectory, there: Collection[Place]) -> list[CheckpointInfo]:
    """Return the checkpoints of the run that are both local and on the remote, the parent first, then the nearest."""
    of_run, own = infos(context, directory.manifest.run), directory.manifest_id
    at = next((i for i, info in enumerate(of_run) if info.id == own), len(of_run))
    known, parent = {place.id for place in there}, directory.manifest.description.parent
    # Of two checkpoints at the same distance, the older one comes first, because readers are more likely to have it.
    order = sorted(range(len(of_run)), key=lambda i: (of_run[i].id != parent, abs(i - at), i))
    return [of_run[i] for i in order if of_run[i].id in known and of_run[i].id != own]


class _Encoder:
    def __init__(
        self, context: Context, directory: CheckpointDirectory, bases: Sequence[CheckpointInfo], held: ExitStack
    ) -> None:
        self._context, self._directory, self._bases, self._held = context, directory, bases, held
        self._forms = EncodingTable()
        self._source = BlobSource()
        held.callback(self._source.close)
        self.spool = Spool()
        self._links: dict[str, Form] = {}
        self._layout = StorageLayout(directory.manifest)
        self._shorter: list[Matcher] | None = None

    def begin(
        self, nearest: CheckpointInfo, form_of: Callable[[Place], StoredForm], sizes: Mapping[str, Collection[int]]
    ) -> bool:
        """Adopt the forms that the remote stores. Return False if the nearest checkpoint is not available locally."""
        base = self._open_base(nearest)
        if base is None:
            return False
        self._source.add(self._directory)
        form = form_of(Place(nearest.run, nearest.step, nearest.id))
        blobs = self._directory.manifest.blobs
        self._forms.keep_plain(blob for blob in blobs if blob.nbytes in sizes.get(blob.digest, ()))
        # Chains are computed from the form of the base on the remote, which may differ from its local form.
        self._forms.adopt(replace(base.manifest, form=form))
        # The lengths of chains are checked later. If a chain with this base is too long, the difference can still be
        # pushed as a link.
        self._matcher = self._matcher_of(base, lambda *_: True)
        return True

    def _open_base(self, info: CheckpointInfo) -> CheckpointDirectory | None:
        try:
            directory = self._held.enter_context(open_directory(self._context, info))
        except _NOT_HERE:
            return None
        self._source.add(directory)
        return directory

    def _matcher_of(self, base: CheckpointDirectory, may_be_base: Callable[[str, str], bool]) -> Matcher:
        return Matcher(self._layout, StorageLayout(base.manifest), self._source.sample, may_be_base)

    def todo(self) -> list[int]:
        """Return the indexes of the blobs that the remote does not have in any form."""
        blobs = self._directory.manifest.blobs
        return [i for i, blob in enumerate(blobs) if not self._forms.is_settled(blob.digest)]

    def is_copy(self, blob: int) -> bool:
        """Whether this blob copies from other blobs, which must then be encoded first."""
        return self._matcher.is_copy(blob)

    def settle(self, index: int) -> None:
        """Choose the form of a blob: based on the nearest checkpoint, on one with a shorter chain, or plain."""
        blob = self._directory.manifest.blobs[index]
        found, is_allowed = self._try_encoding(self._matcher, index)
        if found is None:  # the difference from the nearest checkpoint is large, so others would be larger
            self._forms.keep_plain([blob])
        elif is_allowed:
            self._forms.put(blob.digest, found)
        else:
            if found.file.nbytes <= _LINK_SHARE * blob.nbytes:
                self._links[blob.digest] = found
            for matcher in self._shorter_chain_matchers():
                form, is_allowed = self._try_encoding(matcher, index)
                if form is not None and is_allowed:
                    self._forms.put(blob.digest, form)
                    return
            self._forms.keep_plain([blob])

    def _try_encoding(self, matcher: Matcher, index: int) -> tuple[Form | None, bool]:
        """Return the encoded form of a blob (None if not worthwhile), and whether its chain is short enough."""
        blob = self._directory.manifest.blobs[index]
        segments = matcher.segments(index, alone=False)
        header = header_of(blob, segments)
        if not header.bases or not container.fits(header) or (data := self._encoded(blob, header)) is None:
            return None, False
        masters = {s.base for s in segments if s.prediction != "same"}
        is_allowed = self._forms.allows(blob.digest, blob.nbytes, len(data), header.bases, masters)
        digest = algorithm_of(blob.digest).digest(data)
        self.spool.put(digest, data)
        return Form(blob.nbytes, BlobRecord(digest, len(data)), header.bases), is_allowed

    def _shorter_chain_matchers(self) -> Iterator[Matcher]:
        """Yield matchers for other local checkpoints that share blobs with the chains, the shortest chains first."""
        if self._shorter is None:
            self._shorter = []
            found: list[tuple[int, int, CheckpointInfo]] = []
            for number, info in enumerate(self._bases[1:_LOOKED_AT]):
                with suppress(*_NOT_HERE), open_directory(self._context, info) as directory:
                    settled = [blob.digest for blob in directory.manifest.blobs if self._forms.is_settled(blob.digest)]
                    length = max((len(self._forms.path([digest])) for digest in settled), default=0)
                    found += [(length, number, info)] if length else []
                    if length == 1:  # all of its blobs are plain on the remote
                        break
            for _, _, info in sorted(found)[:_TRIED_MOST]:
                base = self._open_base(info)
                if base is not None:
                    self._shorter.append(self._matcher_of(base, self._forms.may_be_base))
        yield from self._shorter

    def _encoded(self, blob: BlobRecord, header: Header) -> bytes | None:
        """Return a blob in encoded form, verified by decoding it, or None if that is not worthwhile."""
        most_bytes = _MOST_SHARE * blob.nbytes
        if not self._is_promising(blob, header):
            return None
        data = encode(self._source, blob, header)
        if len(data) > most_bytes:
            return None
        plain = container.decode_blob(data, self._source.part, where=blob.digest, most_bytes=BLOB_MAX_BYTES)
        if algorithm_of(blob.digest).digest(plain) != blob.digest:
            # The remote may later have the only copy.
            raise SaveFailed(f"an encoded form of blob {blob.digest} does not decode to it, and was not sent")
        return data

    def _is_promising(self, blob: BlobRecord, header: Header) -> bool:
        """Whether encoding a blob is likely worthwhile, judged by one tile of its longest run.

        That tile is enough to rule out most blobs that are not worth encoding.
        """
        if blob.nbytes <= 2 * TILE_BYTES:
            return True
        start, longest = 0, (0, header.runs[0])
        for run in header.runs:
            if run.nbytes > longest[1].nbytes:
                longest = start, run
            start += run.nbytes
        start, run = longest
        nbytes = min(run.nbytes, TILE_BYTES)
        sample = memoryview(self._source.read(blob.digest))[start : start + nbytes]
        of_tile = replace(header, nbytes=nbytes, runs=(run._replace(nbytes=nbytes),))
        tile = container.encode_blob(sample, of_tile, self._source.part)
        return len(tile) <= 1.25 * _MOST_SHARE * nbytes

    def result(self) -> Delta | None:
        """Return the encoded form of the checkpoint, or None if all of its blobs are pushed plain."""
        directory = self._directory
        manifest = directory.manifest
        found = self._forms.encoding(directory.manifest_id, manifest.blobs, 0)
        if not found.encoded and not self._links:
            return None
        encoding = _with_links(found, self._links)
        plain = files.read_file(directory.manifest_file, most_bytes=MANIFEST_MAX_BYTES, dir_fd=directory.lock.fd)
        return Delta(encoding, self.spool, render(encoding, self._context.algorithm), plain)


def _with_links(encoding: Encoding, links: Mapping[str, Form]) -> Encoding:
    listed = tuple(sorted({*encoding.files, *(form.file for form in links.values())}))
    numbers = {file: number for number, file in enumerate(listed)}
    encoded = {
        digest: form._replace(file=numbers[encoding.files[form.file]]) for digest, form in encoding.encoded.items()
    }
    as_links = {digest: EncodedBlob(form.nbytes, numbers[form.file], form.bases) for digest, form in links.items()}
    return replace(encoding, files=listed, encoded=encoded, links=as_links)
