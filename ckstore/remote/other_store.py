"""Another store as a source of checkpoints. Its directory may be on a cluster filesystem.

ckstore never writes to that store. Its checkpoints are read and verified like those of a remote.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from contextlib import suppress

from ckstore.errors import DamagedBlob, InUse, RemoteError
from ckstore.fs import dirfd_stat, files, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES, file_name, pin_name
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.manifest.stored import OldPiece
from ckstore.model.names import CheckpointKey
from ckstore.objects.checkpoints import CheckpointDirectory, id_at, look, places_with_id
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.objects.layout import ANNOTATIONS, BLOBS, MANIFEST, PLAIN
from ckstore.objects.pieces import read_unless_file
from ckstore.ops.context import Context
from ckstore.remote.keys import Place


class StoreSource:
    """An open store as a source of checkpoints.

    Args:
        name: Its name for users.
        context: The open store.
    """

    def __init__(self, name: str, context: Context) -> None:
        self.name = name
        self._layout = context.layout
        self._of_step = context.of_step

    def close(self) -> None:
        """Do nothing, since file reads need no interruption."""

    def mending(self, place: Place, digest: str = "") -> str:
        """See `ckstore.remote.source.Source`."""
        del digest  # a repair checks all blobs of the checkpoint
        return f"repair {place.name} in the store {self._layout.path}"

    def restoring(self, place: Place) -> str:
        """See `ckstore.remote.source.Source`."""
        return f"it may be evicted: run ckstore pull {place.name} in the store {self._layout.path}"

    def places(self, under: str = "") -> list[Place]:
        """See `ckstore.remote.source.Source`."""
        run = under.partition("/")[0] if "/" in under else None
        found: dict[Place, CheckpointKey] = {}
        # If an id has several generations, the latest counts.
        for key, _ in sorted(self._layout.published(run), key=lambda one: one[0].generation):
            id = id_at(self._layout.checkpoint(key))
            if id is not None and f"{key.run}/{key.step}/{id}/".startswith(under):
                found[Place(*key.run_step, id)] = key
        count = Counter(place.run_step for place in found)
        # If a step has several checkpoints, incomplete ones count only if none is complete, as in the store itself.
        several = [place for place in found if count[place.run_step] > 1]
        whole = {place for place in several if look(self._layout, found[place]).published is not None}
        steps = {place.run_step for place in whole}
        return sorted(place for place in found if place.run_step not in steps or place in whole)

    def manifest(self, place: Place) -> bytes | None:
        """See `ckstore.remote.source.Source`."""
        # The plain manifest of a compacted checkpoint is a separate file.
        return self._read(place, MANIFEST_MAX_BYTES, PLAIN, MANIFEST)

    def plain(self, place: Place) -> bytes:
        """See `ckstore.remote.source.Source`."""
        raise RemoteError(f"{place.name} of {self.name} was changed in the middle of a read", hint="read it again")

    def annotations(self, place: Place) -> bytes | None:
        """See `ckstore.remote.source.Source`."""
        return self._read(place, ANNOTATIONS_MAX_BYTES, ANNOTATIONS)

    def _read(self, place: Place, most_bytes: int, *names: str) -> bytes | None:
        """Return the content of the first of these files that a checkpoint has, or None if it has none of them."""
        for path in places_with_id(self._layout, *place, self._of_step):
            for name in names:
                with suppress(FileNotFoundError, NotADirectoryError):
                    try:
                        return files.read_file(path / name, most_bytes=most_bytes)
                    except DamagedBlob as error:
                        raise RemoteError(error.message) from error
        return None

    def tags(self) -> dict[str, Place]:
        """See `ckstore.remote.source.Source`."""
        targets = self._layout.tags()
        ids: dict[CheckpointKey, str] = {}
        # Read each id once: one checkpoint may have a hundred thousand tags.
        for target in {*targets.values()}:
            generations = [key for key in self._of_step(*target.run_step) if key.any_generation == target]
            found = (id_at(self._layout.checkpoint(key)) for key in generations)
            if (id := next((one for one in found if one is not None), None)) is not None:
                ids[target] = id
        return {name: Place(*key.run_step, ids[key]) for name, key in targets.items() if key in ids}

    def pins(self) -> dict[str, bytes]:
        """See `ckstore.remote.source.Source`."""
        found: dict[str, bytes] = {}
        with suppress(FileNotFoundError):
            for entry in dirfd_stat.names(self._layout.pins):
                if (name := pin_name(entry)) is not None:
                    path = self._layout.pins / file_name(name)
                    found[name] = files.read_file(path, most_bytes=PIN_MAX_BYTES)
        return found

    def advance(self, place: Place, digest: str, offset: int, into: memoryview, old: OldPiece) -> None:
        """Do nothing and return None, because a store, unlike a remote, has no differences between pieces."""

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> int | None:
        """See `ckstore.remote.source.Source`."""
        for path in places_with_id(self._layout, *place, self._of_step):
            try:
                with suppress(FileNotFoundError, NotADirectoryError):
                    return self._read_blob(path, place, digest, offset, into)
            except (DamagedBlob, InUse) as error:
                raise RemoteError(error.message) from error
        return None

    def read_any(self, digest: str, into: memoryview) -> bool:
        """See `ckstore.remote.source.Source`."""
        try:
            with files.opened_regular(self._layout.blob(digest)) as fd:
                files.read_into(fd, 0, into, f"blob {digest} of {self._layout.path}")
        except FileNotFoundError:
            return False
        except DamagedBlob as error:
            raise RemoteError(error.message) from error
        return True

    def _read_blob(self, path: StorePath, place: Place, digest: str, offset: int, into: memoryview) -> int:
        # The checkpoint is locked during the read, so that it is not deleted meanwhile (law L1).
        with locks.lock_shared(path) as lock:
            if id_at(lock.inside) != place.id:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path.inner)
            if dirfd_stat.exists(lock.inside / PLAIN):
                directory = CheckpointDirectory.locked(path, lock, self._layout.hash_prefix)
                if read_unless_file(directory, digest, offset, into, place.name):
                    return len(into)
            with files.opened_regular(lock.inside / BLOBS / digest) as fd:
                files.read_into(fd, offset, into, f"{path}: blob {digest}")
        return len(into)
