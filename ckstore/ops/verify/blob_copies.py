"""Find intact copies of blobs: in the store, in other stores, in copied checkpoints, and in any directory.

An intact copy is a file with the right bytes. A copy is used only after its bytes were read and match the digest. If no
copy of a blob is intact, the blob is assembled from its pieces, which can be recognized by their own digests in damaged
copies and in other blobs.

A file that cannot be read is not an intact copy. Every function in this module that reads bytes raises errors that are
not about the file itself (`files.NOT_OF_THE_FILE`). Otherwise an intact copy would count as damaged and be moved to
quarantine.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ckstore.errors import BadInput, CkstoreError
from ckstore.fs import direct, dirfd_stat, files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.tree import files_below
from ckstore.model.digest import algorithm_of, is_digest
from ckstore.model.lazy_property import LazyProperty
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES, BlobRecord, Manifest
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import CheckpointKey
from ckstore.objects import blobs
from ckstore.objects.blob_check import Piece
from ckstore.objects.layout import BLOBS, MANIFEST, PLAIN, Layout
from ckstore.objects.trash import names_in
from ckstore.ops.context import Context, CopySource
from ckstore.ops.verify.blob_decoder import decoded

File = StorePath | Path
"""A file of the store, or a file outside the store."""
Range = tuple[File, int]
"""A file and an offset in it in bytes."""


@dataclass(slots=True)
class BlobRequest:
    """A request for the right bytes of a blob."""

    digest: str
    nbytes: int
    pieces: set[Piece] = field(default_factory=set)  # its pieces according to the manifests of checkpoints
    places: list[tuple[str, int, str]] = field(default_factory=list)  # run, step and id of checkpoints that need it
    keys: set[CheckpointKey] = field(default_factory=set)  # the directories of these checkpoints


@dataclass(frozen=True, slots=True)
class Right:
    """The right bytes of a blob, or a file of the store that has them, and their source."""

    source: str
    path: StorePath | None = None
    data: bytearray | None = None


class Copies:
    """Finds the right bytes of blobs. Each directory is walked at most once."""

    def __init__(self, context: Context, sources: Iterable[Path], asked: CopySource | None = None) -> None:
        self._layout = context.layout
        self._asked = asked
        self.problems: dict[str, str] = {}  # digest -> why the places in `asked` could not send the blob
        self._sources = [_Tree(_check_source(path)) for path in sources]

    def whole(self, wanted: BlobRequest) -> Right | None:
        """Return an intact copy of a blob, or None."""
        unread: list[OSError] = []
        # Prefer copies in the store, which can be linked. Files outside the store must be copied.
        for path in names_of(self._layout, wanted.digest):
            untouched = is_untouched(path, wanted)
            data = _read_if_right(path, wanted, unread)
            if data is not None:  # a copy that a program has written to may not be durable, so it is written again
                return Right("the store", path=path) if untouched else Right("the store", data=data)
        for tree in self._sources:
            for file in tree.may_be(wanted):
                data = _read_if_right(file, wanted, unread)
                if data is not None:
                    return Right(str(file), data=data)
        if unread:
            raise unread[0]
        return None

    def found(self, wanted: BlobRequest) -> Right | None:
        """Return right bytes of a blob from any source and in any form, or None."""
        # Request the blob from other places before searching for pieces, since a search for pieces reads every manifest
        # of the store.
        return self.whole(wanted) or self.asked(wanted) or self.assembled(wanted) or self.decoded(wanted)

    def asked(self, wanted: BlobRequest) -> Right | None:
        """Return a blob from another place, such as a remote, or None if no place sends it. Record the `problems`."""
        if not self._asked or not wanted.places:
            return None
        answer = self._asked.blob(BlobRecord(wanted.digest, wanted.nbytes), wanted.places)
        self.problems[wanted.digest] = "; ".join(answer.problems)
        return None if answer.data is None else Right(answer.source, data=answer.data)

    def decoded(self, wanted: BlobRequest) -> Right | None:
        """Return a plain blob decoded from a compacted checkpoint, or None."""
        own = (self._layout.checkpoint(key) for key, _ in self._layout.published())
        found = decoded(chain(own, *(tree.compacted for tree in self._sources)), wanted.digest, wanted.nbytes)
        return None if found is None else Right(f"its encoded form in {found[1]}", data=found[0])

    def assembled(self, wanted: BlobRequest) -> Right | None:
        """Return a blob assembled from intact pieces, or None if some pieces are missing."""
        same: list[File] = [
            *names_of(self._layout, wanted.digest),
            *(p for tree in self._sources for p in tree.named(wanted)),
        ]
        images = [image for path in dict.fromkeys(same) if (image := _read(path, 0, wanted.nbytes)) is not None]
        for manifest in (found for tree in self._sources for _, found in tree.manifests):
            add_pieces(manifest, {wanted.digest: wanted})
        # Bytes between the pieces have no digest of their own. For these bytes, try each damaged copy, and then zeros.
        for base in [*images, bytearray()]:
            whole = base[: wanted.nbytes] + bytes(max(0, wanted.nbytes - len(base)))
            sources = {source for piece in wanted.pieces if (source := self._mend(whole, piece, images))}
            # Compare the whole blob even if all pieces are right, since the bytes between the pieces may be wrong.
            if algorithm_of(wanted.digest).digest(whole) == wanted.digest:
                return Right(f"pieces in {', '.join(sorted(sources)) or 'damaged copies'}", data=whole)
        return None

    def asked_manifest(self, key: CheckpointKey) -> tuple[str, bytes, str] | None:
        """Return the id and manifest of the checkpoint at `key`, and the place that sent the manifest, or None."""
        answer = self._asked.manifest(key) if self._asked and not key.is_draft else None
        if answer is None or answer.data is None:
            return None
        data = bytes(answer.data)
        return parse_manifest(data, where=f"the manifest at {answer.source}")[1], data, answer.source

    def manifest(self, run: str, step: int, manifest_id: str) -> tuple[bytes, str] | None:
        """Return the manifest of a checkpoint with that id, and the source of the manifest, or None."""
        for tree in self._sources:
            for path, found in tree.manifests:
                if (found.run, found.step) != (run, step):
                    continue
                again = _manifest_at(path)
                if again is not None and again.id == manifest_id:
                    return again.data, str(path)
        return None

    def _mend(self, whole: bytearray, piece: Piece, images: list[bytearray]) -> str:
        """Replace a wrong piece; return the source of the right bytes, or "" if nothing was replaced."""
        digest, start, length = piece
        stop = start + length
        if _is(whole[start:stop], digest):
            return ""
        for image in images:
            if _is(image[start:stop], digest):
                whole[start:stop] = image[start:stop]
                return "damaged copies"
        for path, offset in self._other_places(piece):
            data = _read(path, offset, offset + length)
            if data is not None and _is(data, digest):
                whole[start:stop] = data
                return "other blobs of the store" if isinstance(path, StorePath) else str(path)
        return ""

    def _other_places(self, piece: Piece) -> Iterator[Range]:
        """Yield other files, with offsets, that should contain the bytes of a piece."""
        yield from ((path, 0) for path in names_of(self._layout, piece[0]))
        yield from self._own_pieces.get(piece[0], ())
        for tree in self._sources:
            yield from ((path, 0) for path in tree.by_name.get(piece[0], ()))
            yield from tree.pieces.get(piece[0], ())

    @LazyProperty
    def _own_pieces(self) -> dict[str, list[Range]]:
        found: dict[str, list[Range]] = {}
        for key, _ in self._layout.published():
            path = self._layout.checkpoint(key)
            manifest = _manifest_at(path / MANIFEST)
            if manifest is not None:
                _add_places(found, manifest.parsed, path)
        return found


class _Tree:
    """A directory outside the store. It is walked once, without following symlinks. Unreadable files are skipped."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def named(self, wanted: BlobRequest) -> list[Path]:
        return self.by_name.get(wanted.digest, [])

    def may_be(self, wanted: BlobRequest) -> Iterator[Path]:
        """Yield the files that may have the bytes: first files named like the blob, then files of the same size."""
        yield from self.named(wanted)
        yield from self._walked[1].get(wanted.nbytes, ())

    @property
    def by_name(self) -> dict[str, list[Path]]:
        """Files whose names are digests."""
        return self._walked[0]

    @LazyProperty
    def manifests(self) -> list[tuple[Path, Manifest]]:
        return [(path, found.parsed) for path in self._walked[2] if (found := _manifest_at(path)) is not None]

    @property
    def compacted(self) -> Iterator[Path]:
        """The directories of compacted checkpoints."""
        return (path.parent for path in self._walked[2] if path.name == PLAIN)

    @LazyProperty
    def pieces(self) -> dict[str, list[Range]]:
        found: dict[str, list[Range]] = {}
        for path, manifest in self.manifests:
            _add_places(found, manifest, path.parent)
        return found

    @LazyProperty
    def _walked(self) -> tuple[dict[str, list[Path]], dict[int, list[Path]], list[Path]]:
        by_name: dict[str, list[Path]] = {}
        by_size: dict[int, list[Path]] = {}
        manifests: list[Path] = []
        # Walk the source only once for all queries, since it may be a whole disk.
        for path in files_below(self._root):
            if is_digest(path.name):
                by_name.setdefault(path.name, []).append(path)
            elif path.name in (MANIFEST, PLAIN):
                manifests.append(path)
            elif (nbytes := _size(path)) is not None:
                by_size.setdefault(nbytes, []).append(path)
        return by_name, by_size, manifests


def add_pieces(manifest: Manifest, wanted: dict[str, BlobRequest]) -> None:
    """Add the pieces in a manifest to the blobs in `wanted`."""
    indexes = {i: wanted[blob.digest] for i, blob in enumerate(manifest.blobs) if blob.digest in wanted}
    if not indexes:
        return
    for storage in manifest.storages:
        for extent in storage.extents:
            if extent.blob in indexes:
                indexes[extent.blob].pieces.add((extent.piece, extent.offset, extent.length))


def names_of(layout: Layout, digest: str) -> Iterator[StorePath]:
    """Yield a link to each copy (inode) of a blob in the store, including links in staging and trash."""
    inodes = set()
    held = [layout.checkpoint(key) for key, _ in layout.published()]
    for folder in (layout.trash, layout.staging):
        held += [folder / name for name in names_in(folder)]
    for path in (layout.blob(digest), *(directory / BLOBS / digest for directory in held)):
        with suppress(PermissionError):  # it belongs to another user
            found = dirfd_stat.find(path)
            # Yield one link for each inode: other links have the same bytes, and a blob may have a thousand links.
            if found is not None and found.st_ino not in inodes:
                inodes.add(found.st_ino)
                yield path


def _check_source(path: Path) -> Path:
    try:
        os.listdir(path)
    except OSError as error:
        msg = f"{path} is not a directory that can be read: {error.strerror}"
        raise BadInput(msg, hint="give another store, or a directory with copies of checkpoints") from error
    # Follow symlinks in the path that the user gave, but not below it.
    return path.resolve()


class _ManifestFile(NamedTuple):
    parsed: Manifest
    id: str
    data: bytes


def _manifest_at(path: File) -> _ManifestFile | None:
    try:
        data = files.read_file(path, most_bytes=MANIFEST_MAX_BYTES)
        return _ManifestFile(*parse_manifest(data, where=str(path)), data)
    except CkstoreError:  # the manifest cannot be used; a damaged manifest of the store is reported separately
        return None
    except OSError as error:
        _raise_unless_of_the_file(error)
        return None


def _add_places(found: dict[str, list[Range]], manifest: Manifest, directory: File) -> None:
    for storage in manifest.storages:
        for extent in storage.extents:
            path = directory / BLOBS / manifest.blobs[extent.blob].digest
            found.setdefault(extent.piece, []).append((path, extent.offset))


def is_right(path: File, wanted: BlobRequest) -> bool:
    """Whether a file has the bytes of a blob. The file is read from the disk, not from the page cache."""
    return _read_if_right(path, wanted) is not None


def is_untouched(path: File, wanted: BlobRequest) -> bool:
    """Whether the size and time of a file show no modification of the blob. False if the file does not exist."""
    try:
        return blobs.looks_untouched(dirfd_stat.status(path), wanted.nbytes)
    except OSError:
        return False


def _read_if_right(path: File, wanted: BlobRequest, unread: list[OSError] | None = None) -> bytearray | None:
    """Return the bytes of a file if they are those of a blob, otherwise None.

    If `unread` is given, an error is added to it instead of being raised.
    """
    try:
        data = _read(path, 0, wanted.nbytes + 1)
    except OSError as error:
        if unread is None:
            raise
        unread.append(error)
        return None
    return data if data is not None and len(data) == wanted.nbytes and _is(data, wanted.digest) else None


def _read(path: File, start: int, stop: int) -> bytearray | None:
    """Return the readable bytes of a regular file from `start`, at most up to `stop`."""
    try:
        return direct.read_range(path, start, stop) if _size(path) is not None else None
    except OSError as error:  # another copy may be readable
        _raise_unless_of_the_file(error)
        return None


def _size(path: File) -> int | None:
    """Return the size of a file in bytes, or None if it is not a regular file or does not exist."""
    try:
        status = dirfd_stat.status(path)
    except OSError as error:
        _raise_unless_of_the_file(error)
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _raise_unless_of_the_file(error: OSError) -> None:
    if error.errno in files.NOT_OF_THE_FILE:
        raise error


def _is(data: bytes | bytearray, digest: str) -> bool:
    return algorithm_of(digest).digest(data) == digest
