"""Reads through to remotes: a range of a blob that is elsewhere. Who reads compares it with the digest of its piece."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ckstore.errors import BytesElsewhere, CkstoreError, RemoteError
from ckstore.objects.documents.elsewhere import read_elsewhere
from ckstore.remote.keys import Place
from ckstore.remote.reach import near, reach, source_of, uuid_of

if TYPE_CHECKING:
    from ckstore.model.checkpoint.elsewhere import Holder
    from ckstore.model.manifest.manifest import BlobRecord
    from ckstore.model.manifest.stored import OldPiece
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.ops.context import Context
    from ckstore.remote.source import Source


class Through:
    """Fetches ranges for the readers of one open store; may be called by several threads."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sources: dict[Holder, Source] = {}
        self._mutex = threading.Lock()

    def __call__(
        self, directory: CheckpointDirectory, blob: BlobRecord, offset: int, into: memoryview, old: OldPiece | None
    ) -> int | None:
        """Fill memory with a range of a blob of an open checkpoint; return how many bytes came.

        With `old`, which is what is in that memory, only the difference is read; None: there is none.

        Raises:
            BytesElsewhere: No remote that should have it does, or none can be reached.
        """
        manifest = directory.manifest
        place = Place(manifest.run, manifest.step, directory.manifest_id)
        document = read_elsewhere(directory.lock.fd)
        problems = []
        for holder in () if document is None else document.remotes:
            try:
                source = self._source(holder)
                if old is not None:
                    came = source.advance(place, blob.digest, offset, into, old)
                else:
                    came = source.read_into(place, blob.digest, offset, into)
                if came is not None:
                    return came
                problems.append(f"{holder.name} lacks it")
            except CkstoreError as error:
                problems.append(f"{holder.name}: {error.message}")
        if old is not None:
            return None
        msg = f"blob {blob.digest} of {manifest.name} is elsewhere, and was not fetched: {'; '.join(problems)}"
        raise BytesElsewhere(msg, hint="is the remote there? ckstore push from a store that has it brings it back")

    def _source(self, holder: Holder) -> Source:
        with self._mutex:
            if holder not in self._sources:
                remote = reach(self._context, holder.name)
                # Another remote under that name may have other checkpoints of the same run and step.
                if uuid_of(remote) != holder.uuid:
                    msg = f"another remote has the name {holder.name}: its uuid is not {holder.uuid}"
                    raise RemoteError(msg)
                self._sources[holder] = source_of(remote, near(self._context.layout))
            return self._sources[holder]
