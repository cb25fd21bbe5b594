"""Fill the new directory of a compacted checkpoint, and keep the bases of a plan open.

The new directory contains the encoded files, links to the files that the checkpoint keeps, and the documents. A base
remains open as long as checkpoints are encoded against it. If this compaction has compacted the base, the former
generation of the base is kept, because no other directory may have the plain bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

from ckstore.errors import BadInput, DamagedBlob
from ckstore.fs import files, links
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import Algorithm
from ckstore.model.manifest.encoding import Encoding, render
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.stored import StoredForm
from ckstore.model.reports.compaction import CompactionPlan
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.layout import PLAIN
from ckstore.objects.staging import Staging
from ckstore.ops.compact.plan import opened
from ckstore.ops.context import Context


def gather(staging: Staging, wanted: Encoding, holders: Iterable[CheckpointDirectory]) -> None:
    """Link every wanted file that is not staged yet into the new directory."""
    sizes = dict(wanted.files)
    for digest in staging.keep_exactly(sizes):
        if staging.claim(digest, sizes[digest]):
            continue
        staging.unclaim(digest)
        # The canonical name of the blob may be missing after a power cut, but each holder has its own links.
        for holder in holders:
            if any(file.digest == digest for file in holder.manifest.stored):
                staging.take(digest, holder.blobs.inside / digest)
                break
    if lacking := staging.keep_exactly(sizes):
        raise DamagedBlob(f"blob {lacking[0]} is missing or was changed", blob=lacking[0])


def seal(staging: Staging, wanted: Encoding, directory: CheckpointDirectory, algorithm: Algorithm) -> None:
    """Write the documents of the new directory, check them as a reader does, and make the directory durable."""
    inside = directory.lock.inside
    plain = staging.lock.inside / PLAIN
    source = inside / directory.manifest_file
    if not wanted.encoded:
        staging.seal(files.read_file(source, most_bytes=MANIFEST_MAX_BYTES))
        return
    # Link the existing manifest file instead of copying it.
    if not links.try_link(source, plain):
        files.create_file(plain, files.read_file(source, most_bytes=MANIFEST_MAX_BYTES), mode=0o444)
    text = render(wanted, algorithm)
    # Parse the document as a reader does, so that loops and wrong lengths are refused before anything is published.
    try:
        data = files.read_file(plain, most_bytes=MANIFEST_MAX_BYTES)
        parse_manifest(text, where=f"the encoding of {directory.manifest.name}", plain=lambda: data)
    except BadInput as error:
        raise DamagedBlob(error.message) from error
    staging.seal(text)


def same(wanted: Encoding, present: StoredForm) -> bool:
    """Whether the present form of a checkpoint equals the wanted one."""
    if not isinstance(present, Encoding):
        return False
    if set(wanted.files) != set(present.files) or wanted.encoded.keys() != present.encoded.keys():
        return False
    return all(
        wanted.file_of(digest) == present.file_of(digest) and form.bases == present.encoded[digest].bases
        for digest, form in wanted.encoded.items()
    )


class _Base(NamedTuple):
    """A checkpoint that is open as a base.

    `path` is not None only for a former generation, which has an exclusive lock.
    """

    directory: CheckpointDirectory
    path: StorePath | None


class BaseCheckpoints:
    """The bases of a plan, each of which is closed after its last use.

    If the base is a former generation, it is then also moved to trash.
    """

    def __init__(self, context: Context, plan: CompactionPlan) -> None:
        self._context = context
        self._infos = {entry.info.name: entry.info for entry in plan.entries}
        self._uses_left = dict.fromkeys(self._infos, 0)
        for entry in plan.compacted:
            self._uses_left[entry.base] += 1
        self._open: dict[str, _Base] = {}

    def open(self, name: str) -> CheckpointDirectory:
        """Return a base, which is opened at the first call.

        If this compaction has compacted the base, return its former generation.
        """
        if name not in self._open:
            self._open[name] = _Base(opened(self._context, self._infos[name]), None)
        return self._open[name].directory

    def published(self) -> list[CheckpointDirectory]:
        """Return the open bases whose directory is still the latest generation of its checkpoint."""
        return [base.directory for base in self._open.values() if base.path is None]

    def close_published(self) -> None:
        """Close the bases that `published` returns, which `open` can reopen."""
        for name in [name for name, base in self._open.items() if base.path is None]:
            self._drop(name)

    def put_old(self, name: str, directory: CheckpointDirectory, path: StorePath) -> None:
        """Keep the former generation of a checkpoint, which is open and locked, as a base."""
        self._open[name] = _Base(directory, path)

    def used(self, name: str) -> None:
        """Record that one checkpoint no longer needs the base."""
        self._uses_left[name] -= 1
        self.drop_unused(name)

    def drop_unused(self, name: str) -> None:
        """Close a base if no further checkpoint of the plan will be encoded against it."""
        if not self._uses_left[name]:
            self._drop(name)

    def close(self) -> None:
        """Close all bases, even if moving one to trash fails."""
        with ExitStack() as left:
            for name in self._open:
                left.callback(self._drop, name)

    def _drop(self, name: str) -> None:
        base = self._open.pop(name, None)
        if base is None:
            return
        try:
            if base.path is not None:
                trash.move_to_trash(self._context.layout, base.path, base.directory.lock)
                # Sync trash before the directory of the run (law N4), which the next publication syncs.
                files.sync_directory(self._context.layout.trash)
        except FileNotFoundError:  # another process has moved the directory to trash
            pass
        finally:
            base.directory.close()
