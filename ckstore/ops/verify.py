"""Read checkpoints whole and say what is damaged; remember it, or that a marked one is whole.

Several threads read, each with one buffer. Every inode is read once, however many checkpoints share it. A checkpoint
is locked for use while it is read, so nobody takes it apart meanwhile; one that goes before that is left out.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Self

from ckstore.errors import BadInput, DamagedBlob, InUse
from ckstore.fs import locks
from ckstore.model.verify_report import Damage, VerifyReport
from ckstore.objects import blobs, marks
from ckstore.objects.checking import READ_BYTES, Checked, Piece, check_blob
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.layout import BLOBS
from ckstore.ops.find import find
from ckstore.ops.marking import remember_damage

if TYPE_CHECKING:
    from ckstore.model.info import CheckpointInfo
    from ckstore.model.manifest import Manifest
    from ckstore.ops.context import Context

Progress = Callable[[int, int], None]
"""Called in the caller's thread with the bytes that are checked and those that are to be checked."""

_WORKERS = 4
_BATCH = 256
_Place = tuple[int, int, str, str]
"""Sorts checkpoints in the order of their commits; those whose order is not known come last."""


def verify(
    context: Context,
    ref: str | int | CheckpointInfo | None = None,
    *,
    sample: float | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read a checkpoint, or all, and say what is damaged; see `ckstore.Store.verify`."""
    part = _check_sample(sample)
    if ref is None:
        places = sorted((run, step) for run, step, _ in context.layout.published())
    else:
        info = find(context, ref)
        places = [(info.run, info.step)]
    found: list[tuple[_Place, list[Damage]]] = []
    with Checker(context, part, _reporter(context, places, part, progress)) as checker:
        for run, step in places:
            damage = checker.checkpoint(run, step)
            if damage is not None:
                found.append(damage)
    found.sort(key=lambda entry: entry[0])
    return VerifyReport(
        checkpoint_count=len(found),
        checked_bytes=checker.checked_bytes,
        damage=tuple(damage for _, listed in found for damage in listed),
        sample=part,
    )


def _check_sample(sample: float | None) -> float:
    if sample is None:
        return 1.0
    if not 0 < sample <= 1:
        msg = f"sample is the part of the blobs to read, above 0 and at most 1, got {sample!r}"
        raise BadInput(msg)
    return float(sample)


class Checker:
    """Checks checkpoints one after another and remembers which blobs it has read; a context manager.

    Attributes:
        checked_bytes: Bytes that were read and compared.
    """

    def __init__(self, context: Context, sample: float = 1.0, report: Callable[[int], None] | None = None) -> None:
        self.checked_bytes = 0
        self._context = context
        self._sample = sample
        self._report = report
        self._may_touch = not context.readonly and not context.broken
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="ckstore-verify")
        self._local = threading.local()
        self._seen: dict[tuple[int, int, str], tuple[str, dict[Piece, str]]] = {}

    def checkpoint(self, run: str, step: int) -> tuple[_Place, list[Damage]] | None:
        """Check one checkpoint, and mark it or remove its mark; return its place in the order, and its damage.

        None: it is gone, or going.
        """
        path = self._context.layout.checkpoint(run, step)
        try:
            lock = locks.lock_shared(path)
        except (FileNotFoundError, NotADirectoryError, InUse):
            return None
        with lock:
            mark = marks.identity(lock.fd)
            order: _Place = (1, step, run, "")
            try:
                directory = CheckpointDirectory.locked(path, lock)
            except DamagedBlob as error:
                damage = [Damage(run, step, (), "", error.message)]
            else:
                manifest = directory.manifest
                order = (0, manifest.sequence, manifest.created, directory.manifest_id)
                damage = self.directory(directory, run, step)
            self._remember(lock, damage, mark)
        return order, damage

    def directory(self, directory: CheckpointDirectory, run: str, step: int) -> list[Damage]:
        """Check the blobs of an open checkpoint; nothing is remembered but the times of blobs."""
        manifest = directory.manifest
        damage = []
        if (manifest.run, manifest.step) != (run, step):
            what = f"{directory.path}: its manifest says {manifest.run}@{manifest.step}"
            damage.append(Damage(run, step, (), "", what))
        return damage + self.blobs(directory, range(len(manifest.blobs)))

    def blobs(self, directory: CheckpointDirectory, indexes: Iterable[int]) -> list[Damage]:
        """Check some blobs of an open checkpoint, given by their index in its manifest."""
        manifest = directory.manifest
        pieces = _pieces(manifest)
        damage = []
        work = iter(self._chosen(directory, list(indexes)))
        while batch := list(islice(work, _BATCH)):
            for index, checked in self._pool.map(lambda i: self._one(directory, i, pieces[i]), batch):
                self.checked_bytes += checked.read_bytes
                if self._report is not None:
                    self._report(self.checked_bytes)
                if checked.problem or checked.bad:
                    damage.append(_damage(manifest, index, checked))
        return damage

    def _chosen(self, directory: CheckpointDirectory, indexes: list[int]) -> list[int]:
        """Return the blobs to look at: all, or of those that are there a random part, but at least one."""
        if self._sample >= 1:
            return indexes
        there: list[int] = []
        broken: list[int] = []
        for index in indexes:
            blob = directory.manifest.blobs[index]
            try:
                whole = blobs.has_size(directory.stat_blob(blob.digest), blob.nbytes)
            except (FileNotFoundError, NotADirectoryError):
                whole = False
            (there if whole else broken).append(index)
        return broken + random.sample(there, math.ceil(self._sample * len(there)))

    def _one(self, directory: CheckpointDirectory, index: int, pieces: set[Piece]) -> tuple[int, Checked]:
        blob = directory.manifest.blobs[index]
        try:
            status = directory.stat_blob(blob.digest)
            key = (status.st_dev, status.st_ino, blob.digest)
        except (FileNotFoundError, NotADirectoryError):
            return index, check_blob(directory.lock.fd, blob, pieces, self._buffer(), may_touch=False)
        new = key not in self._seen
        problem, known = self._seen.setdefault(key, ("", {}))
        unknown = pieces - known.keys()
        fd, may_touch = directory.lock.fd, self._may_touch
        checked = check_blob(fd, blob, unknown, self._buffer(), may_touch=may_touch, whole=new)
        if checked.absent:
            return index, checked
        problem = problem or checked.problem
        known.update((piece, checked.bad.get(piece, "")) for piece in unknown)
        self._seen[key] = (problem, known)
        return index, Checked(problem, {p: known[p] for p in pieces if known[p]}, checked.read_bytes)

    def _buffer(self) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = memoryview(bytearray(READ_BYTES))
        buffer: memoryview = self._local.buffer
        return buffer

    def _remember(self, lock: locks.DirectoryLock, damage: list[Damage], mark: marks.Identity | None) -> None:
        if any(found.affects for found in damage):
            remember_damage(self._context, lock, damage)
        elif self._may_touch and self._sample >= 1:
            marks.remove_mark(lock, mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _pieces(manifest: Manifest) -> dict[int, set[Piece]]:
    """Return the pieces that a manifest says are in each blob, by the blob's index."""
    pieces: dict[int, set[Piece]] = defaultdict(set)
    for storage in manifest.storages:
        for extent in storage.extents:
            pieces[extent.blob].add((extent.piece, extent.offset, extent.length))
    return pieces


def _damage(manifest: Manifest, index: int, checked: Checked) -> Damage:
    """Say what a damaged blob means for a checkpoint."""
    hurt = {
        i
        for i, storage in enumerate(manifest.storages)
        if any(e.blob == index and (e.piece, e.offset, e.length) in checked.bad for e in storage.extents)
    }
    names = tuple(leaf.name for leaf in manifest.leaves if leaf.storage in hurt)
    what = checked.problem or next(iter(checked.bad.values()))
    affects = checked.absent or bool(checked.bad)
    if not affects:
        what += f"; {manifest.run}@{manifest.step} does not use the damaged bytes"
    return Damage(manifest.run, manifest.step, names, manifest.blobs[index].digest, what, affects)


def _reporter(
    context: Context, places: list[tuple[str, int]], part: float, progress: Progress | None
) -> Callable[[int], None] | None:
    if progress is None:
        return None
    total_bytes = int(sum(_sizes(context, places).values()) * part)

    def report(done_bytes: int) -> None:
        progress(done_bytes, max(total_bytes, done_bytes))

    return report


def _sizes(context: Context, places: list[tuple[str, int]]) -> dict[tuple[int, int], int]:
    """Return the size of every inode of some checkpoints."""
    sizes: dict[tuple[int, int], int] = {}
    for run, step in places:
        try:
            with os.scandir(context.layout.checkpoint(run, step) / BLOBS) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    sizes[status.st_dev, status.st_ino] = status.st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
    return sizes
