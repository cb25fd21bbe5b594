"""Another store in a directory, also on a cluster's filesystem, as a remote: each store keeps its own protocol.

What is pushed to it is pulled by it; what is pulled from it is read as from any remote, and believed as little.
"""

from __future__ import annotations

from contextlib import suppress

from ckstore.errors import DamagedBlob, InUse, RemoteError
from ckstore.fs import files, locks, peek
from ckstore.model.checkpoint.pins import PIN_MAX_BYTES, file_name, pin_name
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.manifest.stored import OldPiece
from ckstore.objects.checkpoints import CheckpointDirectory, id_at
from ckstore.objects.documents.annotations import ANNOTATIONS_MAX_BYTES
from ckstore.objects.encoded import decoded
from ckstore.objects.layout import ANNOTATIONS, BLOBS, MANIFEST, PLAIN
from ckstore.ops.context import Context
from ckstore.remote.keys import Place


class StoreSource:
    """An open store as a source."""

    def __init__(self, name: str, context: Context) -> None:
        self.name = name
        self._layout = context.layout

    def close(self) -> None:
        """Do nothing: reads of files end by themselves."""

    def mending(self, place: Place, digest: str = "") -> str:
        """See `ckstore.remote.source.Source`."""
        del digest  # a repair looks at all of them
        return f"repair {place.name} in the store {self._layout.path}"

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
        # Of a compacted checkpoint the manifest lies beside what says how it is stored.
        return self._read(place, PLAIN, MANIFEST_MAX_BYTES) or self._read(place, MANIFEST, MANIFEST_MAX_BYTES)

    def plain(self, place: Place) -> bytes:
        """See `ckstore.remote.source.Source`."""
        raise RemoteError(f"{place.name} of {self.name} was changed in the middle of a read", hint="read it again")

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

    def advance(self, place: Place, digest: str, offset: int, into: memoryview, old: OldPiece) -> None:
        """Turn nothing: what is read of a directory need not be small."""

    def read_into(self, place: Place, digest: str, offset: int, into: memoryview) -> int | None:
        """See `ckstore.remote.source.Source`."""
        path = self._layout.checkpoint(*place.key)
        try:
            # Locked for the time of the read, so that it is not taken apart meanwhile (rule L).
            with locks.lock_shared(path) as lock:
                if id_at(lock.inside) != place.id:
                    return None
                if peek.exists(lock.inside / PLAIN):
                    directory = CheckpointDirectory.locked(path, lock, self._layout.hash_prefix)
                    if decoded(directory, digest, offset, into, place.name):
                        return len(into)
                with files.opened_regular(lock.inside / BLOBS / digest) as fd:
                    files.read_into(fd, offset, into, f"{path}: blob {digest}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (DamagedBlob, InUse) as error:
            raise RemoteError(error.message) from error
        return len(into)
