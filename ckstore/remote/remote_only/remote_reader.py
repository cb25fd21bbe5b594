"""Reads ranges of evicted blobs from remotes. The caller compares the bytes with the digests of their pieces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ckstore.errors import BytesElsewhere, CkstoreError, NoSuchRemote, RemoteError
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.manifest.stored import OldPiece
from ckstore.model.remote.remote_only import RemoteHolder
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.remote.remote_only import read_remote_only
from ckstore.ops.context import Context
from ckstore.ops.download_cache import DownloadCache
from ckstore.remote.keys import Place
from ckstore.remote.remote_opener import near, open_source, source_of, uuid_of
from ckstore.remote.service.remote_entries import entries
from ckstore.remote.source import Source


class RemoteReader:
    """Downloads ranges of blobs for the readers of one open store. Threads may share an instance."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sources: dict[tuple[str, str], Source] = {}  # uuid and name of a remote -> its source
        self._fetched = DownloadCache(context)

    def __call__(  # noqa: PLR0917 - the form of `Context.fetch`
        self,
        directory: CheckpointDirectory,
        blob: BlobRecord,
        offset: int,
        into: memoryview,
        old: OldPiece | None,
        again: bool,  # noqa: FBT001 - the form of `Context.fetch`
    ) -> int | None:
        """Fill memory with a range of a blob of an open checkpoint; return the number of bytes received.

        Args:
            directory: The open checkpoint.
            blob: The blob.
            offset: The first byte of the range.
            into: The memory to fill.
            old: The piece that the memory already contains. Only the difference from this piece is downloaded.
            again: Whether the bytes of an earlier call were wrong.

        Returns:
            The number of bytes, which is 0 if the range was in the cache. If `old` is given and no remote has the
            difference, None.

        Raises:
            BytesElsewhere: No remote has the range.
        """
        if again:
            self._fetched.forget(blob.digest, offset, len(into))
        elif old is None and self._fetched.read_into(blob.digest, offset, into):
            return 0
        manifest = directory.manifest
        place = Place(manifest.run, manifest.step, directory.manifest_id)
        document = read_remote_only(directory.lock.fd)
        problems = []
        lacking: set[RemoteHolder] = set()
        hint = "check the remote"

        def read(holder: RemoteHolder) -> int | None:
            lacking.discard(holder)
            source = self._source(holder)
            if old is not None:
                return source.advance(place, blob.digest, offset, into, old)
            came = source.read_into(place, blob.digest, offset, into)
            if came is None:
                lacking.add(holder)
                raise RemoteError("it lacks the blob", hint=source.restoring(place))
            self._fetched.keep(blob.digest, offset, into)
            return came

        for holder in () if document is None else document.remotes:
            try:
                came = self._retried(holder, read)
                if came is not None:
                    return came
            except CkstoreError as error:
                problems.append(f"{holder.name}: {error.message}")
                if isinstance(error, NoSuchRemote) and holder.name not in entries(self._context.layout):
                    hint = f"add it again under its name: ckstore remote add {holder.name} PLACE"
                else:
                    hint = error.hint or hint
        if old is not None:  # the remotes may only lack the difference
            return None
        msg = f"blob {blob.digest} of {manifest.name} is only on a remote and was not fetched: {'; '.join(problems)}"
        unread = BytesElsewhere(msg, hint=hint)
        unread.is_lost = bool(lacking) and document is not None and lacking == {*document.remotes}
        raise unread

    def _retried(self, holder: RemoteHolder, read: Callable[[RemoteHolder], int | None]) -> int | None:
        """Return the result of `read`. If it fails with a remote that was already open, open the remote again."""
        # Another place may have been set for the remote, or another store may have encoded the blob.
        key = holder.uuid, holder.name
        if key in self._sources:
            with suppress(CkstoreError):
                return read(holder)
            self._sources.pop(key, None)
        try:
            return read(holder)
        except CkstoreError:
            self._sources.pop(key, None)
            raise

    def _source(self, holder: RemoteHolder) -> Source:
        # All checkpoints on a remote share one source. The claim in `holder` differs for each of them.
        key = holder.uuid, holder.name
        found = self._sources.get(key)
        if found is not None:
            return found
        # No lock is used, because it would be held during requests, and a child forked meanwhile would wait for it
        # forever.
        remote = open_source(self._context, holder.name)
        # Another remote with this name may have other checkpoints of the same run and step.
        if uuid_of(remote) != holder.uuid:
            msg = f"another remote has the name {holder.name}: its uuid is not {holder.uuid}"
            raise RemoteError(msg)
        return self._sources.setdefault(key, source_of(remote, near(self._context.layout)))
