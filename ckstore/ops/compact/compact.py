"""Carry a compaction out, one checkpoint after another from the newest on.

Each gets a new directory, written as a save is, with links to what it keeps, and encoded files where it has plain ones
now; one rename exchanges the two. The old one lies in ``staging/``, locked, as long as older checkpoints may be encoded
against its plain bytes, then goes to trash; gc frees what no directory has any more. A kill at any step leaves each
checkpoint in one of its two forms.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, InUse
from ckstore.fs import files, links, locks
from ckstore.model.manifest.encoding import render
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.reports.compaction import Compacted, CompactionPlan, CompactionReport, Uncompacted
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.encoded import is_encoded
from ckstore.objects.layout import MANIFEST, PLAIN
from ckstore.objects.staging import Staging
from ckstore.objects.swap import swap
from ckstore.ops.compact.encode import BlobSource, encode, header_of, stage
from ckstore.ops.compact.forms import Form, Forms
from ckstore.ops.compact.match import Layout, Matcher, check_covers
from ckstore.ops.compact.plan import opened
from ckstore.ops.compact.shares import Owners, own_blobs
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import tell_unfreed
from ckstore.ops.index.reconcile import reconcile_one
from ckstore.ops.notices import warn
from ckstore.ops.os_errors import describe_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ckstore.fs.inside import Inside
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.manifest.manifest import BlobRecord, Manifest
    from ckstore.model.manifest.stored import Encoding
    from ckstore.model.reports.compaction import CompactionEntry
    from ckstore.ops.context import Context

_CATALOG_TIMEOUT_S = 5.0


class _Old(NamedTuple):
    """A directory that was exchanged, and that others may be encoded against."""

    directory: CheckpointDirectory
    path: Inside | None


def compact(
    context: Context, plan: CompactionPlan, *, before_each: Callable[[], None] = lambda: None
) -> CompactionReport:
    """Carry out a plan. What is in use, or was changed since, stays as it is.

    Args:
        context: The store.
        plan: What to do.
        before_each: Called before each tile: it may rest.

    Raises:
        SaveFailed: The disk does not give back what was written, or the store cannot be written.
        OSError: The system refused; what was compacted before is.
    """
    context.check_writable()
    with _Compaction(context, plan, before_each) as work:
        for entry in plan.compacted:
            work.one(entry)
        for entry in plan.entries:
            work.share(entry)
    reclaim.give_back(context, work.let_go)
    if note := tell_unfreed(context):
        warn(note)
    return CompactionReport(
        plan,
        compacted=tuple(work.compacted.values()),
        skipped=tuple(work.skipped),
        encoded_count=work.encoded_count,
        plain_bytes=work.plain_bytes,
        encoded_bytes=work.encoded_bytes,
    )


class _Compaction:
    def __init__(self, context: Context, plan: CompactionPlan, before_each: Callable[[], None]) -> None:
        self._before_each = before_each
        self.compacted: dict[str, Compacted] = {}
        self.skipped: list[Uncompacted] = []
        self.let_go: set[str] = set()
        self.encoded_count = self.plain_bytes = self.encoded_bytes = 0
        self._context = context
        self._forms = Forms()
        self._infos = {entry.info.name: entry.info for entry in plan.entries}
        self._uses_left = dict.fromkeys(self._infos, 0)
        for entry in plan.compacted:
            self._uses_left[entry.base] += 1
        self._old: dict[str, _Old] = {}
        self._owners = Owners()
        # What has old packs that an older checkpoint is going to encode, with what was staged for it.
        self._later: dict[str, Staging | None] = {}
        self._note_owners(plan)
        self._note_others(plan)

    def _note_others(self, plan: CompactionPlan) -> None:
        """Settle what the checkpoints have that stay as they are: of what is plain there, nothing is saved here."""
        mine = {entry.info.key for entry in plan.compacted}
        shares = {entry.info.key for entry in plan.entries if entry.shares}
        for run, step, _ in self._context.layout.published():
            if (run, step) in mine:
                continue
            try:
                with CheckpointDirectory.at(self._context.layout.checkpoint(run, step)) as directory:
                    manifest = directory.manifest
                    if (run, step) in shares:
                        self._keep_own(manifest)
                    elif manifest.encoding is None:
                        self._forms.keep_plain(manifest.blobs)
                    else:
                        self._forms.adopt(manifest.encoding)
            except (FileNotFoundError, NotADirectoryError, DamagedBlob, InUse, PermissionError):
                continue  # it is gone, or cannot be read: it has links of its own to whatever it needs

    def _note_owners(self, plan: CompactionPlan) -> None:
        for entry in plan.compacted:
            # What cannot be opened is skipped at its turn, with the reason.
            unread = suppress(CkstoreError, FileNotFoundError, NotADirectoryError, PermissionError)
            with unread, opened(self._context, entry.info) as directory:
                self._owners.note(entry.info.key, directory.manifest)

    def _keep_own(self, manifest: Manifest) -> None:
        """Settle as plain what a checkpoint needs a good part of; the rest goes as older ones have it."""
        encoded = {} if manifest.encoding is None else manifest.encoding.encoded
        self._forms.keep_plain(blob for blob in own_blobs(manifest) if blob.digest not in encoded)

    def one(self, entry: CompactionEntry) -> None:
        """Compact one checkpoint, or note why not."""
        before: set[str] = set()
        try:
            with ExitStack() as held:
                directory = held.enter_context(opened(self._context, entry.info))
                before = {blob.digest for blob in directory.manifest.blobs if self._forms.is_settled(blob.digest)}
                self._one(entry, directory, held)
        except (CkstoreError, FileNotFoundError, PermissionError) as error:
            why = error.message if isinstance(error, CkstoreError) else describe_os_error(error)
            self.skipped.append(Uncompacted(entry.info, why))
            self._forget(entry.info, before)
        finally:
            self._used(entry.base)

    def _forget(self, info: CheckpointInfo, before: set[str]) -> None:
        """Settle the blobs of a checkpoint that stays as it is as they are there: others may have them, too."""
        try:
            with opened(self._context, info) as directory:
                manifest = directory.manifest
        except (CkstoreError, FileNotFoundError, NotADirectoryError):
            return
        self._forms.forget(blob.digest for blob in manifest.blobs if blob.digest not in before)
        if manifest.encoding is None:
            self._forms.keep_plain(blob for blob in manifest.blobs if not self._forms.is_settled(blob.digest))
        else:
            self._forms.adopt(manifest.encoding)

    def _one(self, entry: CompactionEntry, directory: CheckpointDirectory, held: ExitStack) -> None:
        info, manifest = entry.info, directory.manifest
        base = self._base(entry.base)
        source = BlobSource(self._before_each)
        held.callback(source.close)
        source.add(base)
        source.add(directory)
        staging = Staging.create(self._context.layout, info.run, info.step)
        try:
            count = self.encoded_count
            self._settle(entry, directory, base, source, staging)
            source.close()
            open_ones = [blob.digest for blob in manifest.blobs if not self._forms.is_settled(blob.digest)]
            if open_ones:
                self._later[info.name] = None
            if any(is_encoded(directory, digest) for digest in open_ones):
                # Neither is the plain blob there, nor may its form stay: all is done when its owner was encoded.
                if self.encoded_count > count:
                    self._later[info.name] = staging
                else:
                    reclaim.discard(self._context, staging)
                return
        except BaseException as error:
            reclaim.discard(self._context, staging, error)
            raise
        self._publish(entry, directory, staging, base)

    def share(self, entry: CompactionEntry) -> None:
        """Give the directory of a checkpoint the encoded forms of old packs that older ones have."""
        name = entry.info.name
        if not entry.shares and name not in self._later:
            return
        staging = self._later.pop(name, None)
        try:
            with opened(self._context, entry.info) as directory:
                manifest = directory.manifest
                if manifest.encoding is None:
                    self._forms.keep_plain(blob for blob in manifest.blobs if not self._forms.is_settled(blob.digest))
                else:
                    self._forms.adopt(manifest.encoding)
                self._publish(entry, directory, staging)
                staging = None
        except (CkstoreError, FileNotFoundError, PermissionError) as error:
            why = error.message if isinstance(error, CkstoreError) else describe_os_error(error)
            self.skipped.append(Uncompacted(entry.info, why))
        finally:
            if staging is not None:
                reclaim.discard(self._context, staging)

    def _publish(
        self,
        entry: CompactionEntry,
        directory: CheckpointDirectory,
        staging: Staging | None,
        *others: CheckpointDirectory,
    ) -> None:
        """Exchange the directory of a checkpoint, unless it is as it should be."""
        info, manifest = entry.info, directory.manifest
        wanted = self._forms.encoding(directory.manifest_id, manifest.blobs, entry.place)
        if not any(blob.digest in wanted.encoded for blob in manifest.blobs) or _same(wanted, manifest.encoding):
            if staging is not None:
                reclaim.discard(self._context, staging)
            return
        staging = staging or Staging.create(self._context.layout, info.run, info.step)
        try:
            self._gather(staging, wanted, (directory, *others))
            self._seal(staging, wanted, directory)
            directory.close()
            old, lock = swap(self._context.layout, staging, info.key, info.id)
        except BaseException as error:
            reclaim.discard(self._context, staging, error)
            raise
        staging.lock.release()
        self._swapped(entry, manifest, wanted, old, lock)

    def _base(self, name: str) -> CheckpointDirectory:
        """Return a base, opened once: as it was before it was compacted itself, if that was here."""
        if name not in self._old:
            self._old[name] = _Old(opened(self._context, self._infos[name]), None)
        return self._old[name].directory

    def _settle(
        self,
        entry: CompactionEntry,
        directory: CheckpointDirectory,
        base: CheckpointDirectory,
        source: BlobSource,
        staging: Staging,
    ) -> None:
        """Give each blob of a checkpoint its form; masters before their copies, which are decoded with them."""
        manifest = directory.manifest
        todo = [
            i
            for i, blob in enumerate(manifest.blobs)
            if not self._forms.is_settled(blob.digest) and self._owners.is_of(blob.digest, entry.info.key)
        ]
        if not todo:
            return
        matcher = Matcher(Layout(manifest), Layout(base.manifest), source.sample, self._forms.may_be_base)
        for index in sorted(todo, key=matcher.is_copy):
            self._settle_one(manifest, index, matcher, source, staging)

    def _settle_one(
        self, manifest: Manifest, index: int, matcher: Matcher, source: BlobSource, staging: Staging
    ) -> None:
        blob = manifest.blobs[index]
        for alone in (False, True):
            segments = matcher.segments(index, alone=alone)
            check_covers(segments, blob.nbytes)
            header = header_of(blob, segments)
            masters = {s.base for s in segments if s.prediction != "same"}
            if self._keep_present(manifest, blob, header.bases, masters):
                return
            # Asked before the work with the least that it may be: most paths that are too long are so by their bases.
            if not self._forms.allows(blob.digest, blob.nbytes, 0, header.bases, masters):
                continue
            data = encode(source, blob, header)
            if len(data) < blob.nbytes and self._forms.allows(
                blob.digest, blob.nbytes, len(data), header.bases, masters
            ):
                file = stage(source, staging, blob, data)
                self._forms.put(blob.digest, Form(blob.nbytes, file, header.bases))
                self.encoded_count += 1
                self.plain_bytes += blob.nbytes
                self.encoded_bytes += file.nbytes
                return
            if not header.bases:
                break
        self._forms.keep_plain([blob])

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

    def _gather(self, staging: Staging, wanted: Encoding, holders: Iterable[CheckpointDirectory]) -> None:
        """Link every file of the new directory that is not staged yet."""
        sizes = dict(wanted.files)
        for digest in staging.keep_exactly(sizes):
            if staging.claim(digest, sizes[digest]):
                continue
            staging.unclaim(digest)
            # The canonical name may be gone after a power cut; each of these has one of its own.
            for holder in holders:
                if any(file.digest == digest for file in holder.manifest.stored):
                    staging.take(digest, holder.blobs.inside / digest)
                    break
        if lacking := staging.keep_exactly(sizes):
            raise DamagedBlob(f"blob {lacking[0]} is missing or was changed", blob=lacking[0])

    def _seal(self, staging: Staging, wanted: Encoding, directory: CheckpointDirectory) -> None:
        inside = directory.lock.inside
        plain = staging.lock.inside / PLAIN
        source = inside / (MANIFEST if directory.manifest.encoding is None else PLAIN)
        # The very file that the manifest is, so that no byte of it is written again.
        if not links.try_link(source, plain):
            files.create_file(plain, files.read_file(source, most_bytes=2**29), mode=0o444)
        text = render(wanted, self._context.algorithm)
        # As a reader will: loops, lengths and sizes are refused before anything is published.
        try:
            data = files.read_file(plain, most_bytes=2**29)
            parse_manifest(text, where=f"the encoding of {directory.manifest.name}", plain=lambda: data)
        except BadInput as error:
            raise DamagedBlob(error.message) from error
        staging.seal(text)

    def _swapped(
        self, entry: CompactionEntry, manifest: Manifest, wanted: Encoding, old: Inside, lock: locks.DirectoryLock
    ) -> None:
        info = entry.info
        try:
            directory = CheckpointDirectory.locked(old, lock)
        except BaseException:
            lock.release()
            raise
        self._old[info.name] = _Old(directory, old)  # at once: it is closed with the others, whatever fails below
        kept = {file.digest for file in wanted.files}
        self.let_go |= {blob.digest for blob in manifest.stored if blob.digest not in kept}
        sizes = dict(wanted.files)
        before = dict(manifest.stored)
        own = [blob.digest for blob in manifest.blobs]
        file_before = own if manifest.encoding is None else [manifest.encoding.file_of(digest) for digest in own]
        if not entry.shares:
            first = self.compacted.get(info.name)
            self.compacted[info.name] = Compacted(
                info,
                first.before_bytes if first else sum(before[digest] for digest in dict.fromkeys(file_before)),
                sum(sizes[digest] for digest in dict.fromkeys(map(wanted.file_of, own))),
            )
        self._context.known.directories.changed(info.key, None, None)
        with suppress(CkstoreError):  # what is not done in time the next opener does
            reconcile_one(self._context, info.key, timeout_s=_CATALOG_TIMEOUT_S)
        if not self._uses_left[info.name]:
            self._drop_old(info.name)

    def _used(self, base: str) -> None:
        self._uses_left[base] -= 1
        if not self._uses_left[base]:
            self._drop_old(base)

    def _drop_old(self, name: str) -> None:
        old = self._old.pop(name, None)
        if old is None:
            return
        try:
            if old.path is not None:
                trash.move_to_trash(self._context.layout, old.path, old.directory.lock)
        except FileNotFoundError:  # swept by another process
            pass
        finally:
            old.directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._old):
            self._drop_old(name)
        while self._later:
            if staging := self._later.popitem()[1]:
                reclaim.discard(self._context, staging)


def _same(wanted: Encoding, present: Encoding | None) -> bool:
    """Whether a directory is as it should be."""
    if present is None or set(wanted.files) != set(present.files) or wanted.encoded.keys() != present.encoded.keys():
        return False
    return all(
        wanted.file_of(digest) == present.file_of(digest) and form.bases == present.encoded[digest].bases
        for digest, form in wanted.encoded.items()
    )
