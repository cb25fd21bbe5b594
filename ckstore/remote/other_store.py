"""Another store in a directory, also on a cluster's filesystem, as a remote: each store keeps its own protocol.

What is pushed to it is pulled by it; what is pulled from it is read as from any remote, and believed as little.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from ckstore.errors import DamagedBlob, MissingBlob, RemoteError
from ckstore.fs import files, peek
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES, file_name, pin_name
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.objects.checkpoints import CheckpointDirectory, id_at
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.objects.layout import ANNOTATIONS, MANIFEST
from ckstore.remote.keys import Place

if TYPE_CHECKING:
    from ckstore.ops.context import Context


class StoreSource:
    """An open store as a source; a context manager. A checkpoint that is read stays locked for use until the end."""

    def __init__(self, name: str, context: Context) -> None:
        self.name = name
        self._layout = context.layout
        self._opened = ExitStack()
        self._directories: dict[Place, CheckpointDirectory] = {}
        self._mutex = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is locked."""
        self._directories.clear()
        self._opened.close()

    def places(self, under: str = "") -> list[Place]:
        """See `ckstore.remote.source.Source`."""
        run = under.partition("/")[0] if "/" in under else None
        found = []
        for name, step, _ in self._layout.published(run):
            id = id_at(self._layout.checkpoint(name, step))
            if id is not None and f"{name}/{step}/{id}/".startswith(under):
                found.append(Place(name, step, id))
        return sorted(found)

    def manifest(self, place: Place) -> bytes | None:
        """See `ckstore.remote.source.Source`."""
        return self._read(place, MANIFEST, MANIFEST_MAX_BYTES)

    def annotations(self, place: Place) -> bytes | None:
        """See `ckstore.remote.source.Source`."""
        return self._read(place, ANNOTATIONS, ANNOTATIONS_MAX_BYTES)

    def _read(self, place: Place, name: str, most_bytes: int) -> bytes | None:
        path = self._layout.checkpoint(*place.key)
        try:
            if id_at(path) != place.id:
                return None
            return files.read_file(path / name, most_bytes=most_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedBlob as error:
            raise RemoteError(error.message) from error

    def tags(self) -> dict[str, Place]:
        """See `ckstore.remote.source.Source`."""
        found = {name: (target, id_at(self._layout.checkpoint(*target))) for name, target in self._targets().items()}
        return {name: Place(*target, id) for name, (target, id) in found.items() if id is not None}

    def _targets(self) -> dict[str, tuple[str, int]]:
        return {name: (target[0], target[1]) for name, target in self._layout.tags().items()}

    def pins(self) -> dict[str, bytes]:
        """See `ckstore.remote.source.Source`."""
        found: dict[str, bytes] = {}
        with suppress(FileNotFoundError):
            for entry in peek.names(self._layout.pins):
                if (name := pin_name(entry)) is not None:
                    path = self._layout.pins / file_name(name)
                    found[name] = files.read_file(path, most_bytes=PIN_MAX_BYTES)
        return found

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> bool:
        """See `ckstore.remote.source.Source`."""
        directory = self._directory(place)
        blob = next((blob for blob in directory.manifest.blobs if blob.digest == digest), None)
        if blob is None:
            return False
        try:
            fd = directory.open_blob(blob, place.name)
        except MissingBlob:
            return False
        except DamagedBlob as error:
            raise RemoteError(error.message) from error
        try:
            files.read_into(fd, offset, into, f"{directory.path}: blob {digest}")
        except DamagedBlob as error:
            raise RemoteError(error.message) from error
        finally:
            os.close(fd)
        return True

    def _directory(self, place: Place) -> CheckpointDirectory:
        with self._mutex:
            if place not in self._directories:
                path = self._layout.checkpoint(*place.key)
                try:
                    # Locked until the end: nothing drops it there while its blobs are read (rule L).
                    directory = self._opened.enter_context(CheckpointDirectory.at(path, self._layout.hash_prefix))
                except (FileNotFoundError, NotADirectoryError, DamagedBlob) as error:
                    msg = f"{place.name} at {self.name} cannot be read: {error}"
                    raise RemoteError(msg) from error
                if directory.manifest_id != place.id:
                    msg = f"{place.name} at {self.name} was replaced meanwhile"
                    raise RemoteError(msg)
                self._directories[place] = directory
            return self._directories[place]
