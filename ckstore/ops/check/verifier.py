"""Check checkpoints one after another, reading every copy of a blob once, even if many checkpoints share it.

Several threads read, each with one buffer. A checkpoint is locked while it is checked, so that no process deletes it.
A checkpoint that was already deleted is skipped.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Self

from ckstore.codecs.tiles import TILE_BYTES
from ckstore.errors import DamagedBlob, InUse, OtherHash
from ckstore.fs import buffers, dirfd_stat, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.checkpoint.mark import MarkEntry
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord, Manifest
from ckstore.model.names import CheckpointKey, spellings
from ckstore.model.reports.verify_report import Damage
from ckstore.objects import blobs
from ckstore.objects.blob_check import READ_BYTES, Checked, Pace, Piece, ReadMode, check_blob, check_file
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.documents import marks
from ckstore.objects.pieces import extents_of, why_not_right
from ckstore.ops.call_threads import Workers
from ckstore.ops.check.validity import remember_damage
from ckstore.ops.context import Context
from ckstore.ops.index.facts import row_digest
from ckstore.ops.pace import ReadBudget

# The number of blobs in a batch. Results are processed after each batch, so that progress is shown and memory use
# remains small.
_BATCH = 256
VerifyOrder = tuple[int, int, str, str]
"""A sort key: checkpoints in the order of their commits, followed by those whose order is unknown."""
Unit = tuple[int, int, str]
"""A copy of a blob: device, inode number, digest."""


class Verifier:
    """Checks checkpoints and remembers which blobs it has read. It is a context manager.

    Args:
        context: The store.
        report: Called with the number of bytes that were read so far.
        pace: Called before each read with the number of bytes.
        budget: Decides which blobs may still be read.
        quick: Whether to report blobs of a wrong size without reading them.
    """

    def __init__(
        self,
        context: Context,
        report: Callable[[int], None] | None = None,
        *,
        pace: Pace | None = None,
        budget: ReadBudget | None = None,
        quick: bool = False,
    ) -> None:
        self.checked_bytes = 0  # bytes that were read and compared
        self.decoded_bytes = 0  # bytes of encoded blobs that were decoded and compared
        self.good: set[Unit] = set()  # the copies that were read and were intact
        self.bad: set[Unit] = set()  # the copies that were read and were damaged
        self.missing: set[str] = set()  # blobs that a checkpoint needs and lacks
        self.away: set[CheckpointKey] = set()  # the checkpoints with blobs that only a remote has
        self.ids: dict[CheckpointKey, str] = {}  # the id of each checkpoint with a readable manifest
        # The `row_digest` of each checkpoint that is complete locally, so that its manifest is not parsed again.
        self.row_digests: dict[CheckpointKey, str] = {}
        # The checkpoints that were skipped because another process had locked them for too long.
        self.locked: dict[CheckpointKey, InUse] = {}
        self._context = context
        self._report = report
        self._pace = pace
        self._quick = quick
        self._budget = budget or ReadBudget(None)
        self._may_touch = not context.readonly and not context.writes_disabled_because
        self._pool = Workers(context.threads)
        # Each thread keeps its buffer: 4 MiB in huge pages is too expensive to allocate for each blob.
        self._local = threading.local()
        self._decodings: set[tuple[str, ...]] = set()
        self._results: dict[Unit, tuple[str, dict[Piece, str]]] = {}
        self._right_names: dict[tuple[int, int], str] = {}

    def lift_budget(self) -> None:
        """Read without a budget from now on."""
        self._budget = ReadBudget(None)

    def file(self, path: StorePath, digest: str, nbytes: int) -> str | None:
        """Check a file that should be a blob and is in no checkpoint. Return its problem, or "" if the file is intact.

        Return None if the budget does not allow reading the file, or if it was removed. In a writable store, the time
        of a damaged file is changed, so that no save reuses it.
        """
        try:
            status = dirfd_stat.status(path)
        except FileNotFoundError:
            return None
        unit = (status.st_dev, status.st_ino, digest)
        if unit in self.good:
            return ""
        if not self._budget.begin(nbytes):
            return None
        how = ReadMode(self._buffer(), self._may_touch, not self._is_right_by_another_name(unit), self._pace)
        checked = check_file(path, BlobRecord(digest, nbytes), how)
        self._budget.done(nbytes)
        self.checked_bytes += checked.read_bytes
        (self.bad if checked.problem else self.good).add(unit)
        return checked.problem

    def checkpoint(
        self, key: CheckpointKey, only: Container[Unit] | None = None
    ) -> tuple[VerifyOrder, list[Damage]] | None:
        """Check one checkpoint, mark it or remove its mark, and return its place in the order and its damage.

        Return None if the checkpoint was removed, is `locked`, or cannot be read by this user.

        Args:
            key: The checkpoint.
            only: The copies to read. If None, all. Missing blobs and wrong sizes are always reported. With `only`, a
                mark is never removed. If `only` is a mapping, the copies with the lowest values are read first.
        """
        try:
            found = self._checkpoint(key, only)
            return found and (found[0], [replace(one, directory=key.directory) for one in found[1]])
        except PermissionError:
            self._context.layout.pass_over(self._context.layout.checkpoint(key))
            return None

    def _checkpoint(self, key: CheckpointKey, only: Container[Unit] | None) -> tuple[VerifyOrder, list[Damage]] | None:
        run, step, _ = key
        path = self._context.layout.checkpoint(key)
        try:
            # Hold the lock during the whole check, so that no process deletes the checkpoint.
            lock = locks.lock_shared(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except InUse as error:
            self.locked[key] = error
            return None
        with lock:
            # Identify the mark before the first read: a mark that is written later may be about damage that this check
            # does not find, and must not be removed.
            mark = marks.identity(lock.fd)
            order: VerifyOrder = (1, step, run, "")
            try:
                directory = CheckpointDirectory.locked(path, lock, self._context.layout.hash_prefix)
            except OtherHash as error:  # a checkpoint with another hash algorithm is not damaged, so it is not marked
                return order, [Damage(run, step, (), "", str(error))]
            except DamagedBlob as error:
                new = damage = [Damage(run, step, (), "", error.message)]
            else:
                manifest = directory.manifest
                order = (0, manifest.sequence, manifest.created, directory.manifest_id)
                self.ids[key] = directory.manifest_id
                new = self.directory(directory, key, only)
                if not new and key not in self.away:
                    info = CheckpointInfo.of(manifest, directory.manifest_id)
                    self.row_digests[key] = row_digest(info, manifest.stored, directory.stamp)
                damage = new if only is None else [*new, *self._known(directory, new)]
            if any(found.affects for found in new):
                remember_damage(self._context, lock, new)
            elif self._may_touch and only is None:
                marks.remove_mark(lock, mark)
        return order, damage

    def _known(self, directory: CheckpointDirectory, damage: list[Damage]) -> Iterator[Damage]:
        """Yield the damage that the mark of a checkpoint records for blobs that were not read now."""
        manifest, mark = directory.manifest, marks.read_mark(directory.lock.fd)
        reported = {found.blob for found in damage}
        sizes = {blob.digest: blob for blob in manifest.stored}
        for entry in () if mark is None else mark.entries or (MarkEntry("", (), "it is marked as damaged"),):
            unit = unit_of(directory, sizes[entry.blob]) if entry.blob in sizes else None
            if entry.blob not in reported and unit not in self.good:
                message = f"{entry.what} (found by an earlier read)"
                yield Damage(manifest.run, manifest.step, entry.names, entry.blob, message)

    def directory(
        self, directory: CheckpointDirectory, key: CheckpointKey, only: Container[Unit] | None = None
    ) -> list[Damage]:
        """Check the blobs of an open checkpoint. Only the times of damaged blobs are changed."""
        manifest = directory.manifest
        damage = []
        if not key.fits(manifest.run, manifest.step, directory.manifest_id):
            message = f"{directory.path}: its manifest is that of {manifest.name} with id {directory.manifest_id}"
            damage.append(Damage(*key.run_step, (), "", message))
        return damage + self.blobs(directory, range(len(manifest.stored)), only)

    def blobs(
        self, directory: CheckpointDirectory, indexes: Iterable[int], only: Container[Unit] | None = None
    ) -> list[Damage]:
        """Check some files of an open checkpoint, given by their index in `stored`, and their decoded content."""
        manifest = directory.manifest
        pieces, teller = _pieces(manifest), Teller(manifest)
        damage = []
        work = iter(indexes if only is None else _wanted(directory, indexes, only))
        # Read the first blob by itself. If several reads began at once, another read could use up the budget, and the
        # first blob would never be read.
        while batch := list(islice(work, 1 if self._budget.fresh else _BATCH)):
            with closing(self._pool.map(lambda i: self._one(directory, i, pieces[i]), batch)) as results:
                for index, checked in results:
                    self.checked_bytes += checked.read_bytes
                    if self._report is not None:
                        self._report(self.checked_bytes)
                    if checked.problem or checked.bad:
                        damage.append(teller.damage(index, checked))
        # Decode only if all files are intact. The damage of a file already includes everything that is decoded from it.
        if not (manifest.form.is_plain or damage):
            damage += self._decoded(directory, teller)
        return damage

    def _decoded(self, directory: CheckpointDirectory, teller: Teller) -> Iterator[Damage]:
        """Decode each encoded blob whose files are intact, unless it was decoded before, and yield the damage."""
        # Equal files always decode to the same bytes, so a blob is decoded once even if many checkpoints have it.
        right = {unit[2] for unit in self.good}
        manifest = directory.manifest
        numbers = {file.digest: number for number, file in enumerate(manifest.stored)}
        for index, extents in enumerate(extents_of(manifest)):
            key = tuple(manifest.files_of(index))
            if (
                manifest.form.has_file(manifest.blobs[index].digest)
                or key in self._decodings
                or not right.issuperset(key)
            ):
                continue
            file = numbers[key[0]]
            nbytes = manifest.stored[file].nbytes
            if not self._budget.begin(nbytes):
                return
            self._decodings.add(key)
            problem = why_not_right(directory, extents, self._before_tile)
            self.decoded_bytes += sum(extent.length for extent in extents)
            self._budget.done(nbytes)
            if problem:
                yield teller.damage(file, Checked(problem))

    def _before_tile(self) -> None:
        if self._pace is not None:
            self._pace(TILE_BYTES)

    def _one(self, directory: CheckpointDirectory, index: int, pieces: set[Piece]) -> tuple[int, Checked]:
        blob = directory.manifest.stored[index]
        unit = unit_of(directory, blob)
        if unit is None and not directory.must_have(blob.digest):
            # Only a remote has the blob, so it is not read now. It is checked when it is downloaded.
            self.away.add(CheckpointKey(directory.manifest.run, directory.manifest.step, directory.lock.inside.name))
            return index, Checked()
        if unit is None:
            self.missing.add(blob.digest)
            return index, check_blob(
                directory, blob, pieces, ReadMode(self._buffer(), pace=self._pace, by_size=self._quick)
            )
        # A blob that many checkpoints share is read completely once. For later checkpoints, only pieces that no earlier
        # checkpoint named are read.
        new = unit not in self._results
        problem, known = self._results.get(unit, ("", {}))
        unknown = pieces - known.keys()
        nbytes = blob.nbytes if new else sum(piece[2] for piece in unknown)
        if not self._budget.begin(nbytes):
            return index, Checked()
        how = ReadMode(self._buffer(), self._may_touch, not self._is_right_by_another_name(unit), self._pace)
        checked = check_blob(directory, blob, unknown, how, whole=new)
        self._budget.done(nbytes)
        if checked.absent:
            return index, checked
        problem = problem or checked.problem
        known.update((piece, checked.bad.get(piece, "")) for piece in unknown)
        # Another checkpoint may name the whole blob as one piece. This piece need not be read again.
        if new:
            known.setdefault((blob.digest, 0, blob.nbytes), problem)
        self._results[unit] = (problem, known)
        bad = {piece: known[piece] for piece in pieces if known[piece]}
        if problem or bad:
            self.bad.add(unit)
            # A copy with one wrong piece counts as damaged, even if the pieces that other checkpoints name are intact.
            self.good.discard(unit)
        elif unit not in self.bad:
            self.good.add(unit)
            self._right_names[unit[:2]] = unit[2]
        return index, Checked(problem, bad, checked.read_bytes)

    def _is_right_by_another_name(self, unit: Unit) -> bool:
        """Whether the bytes of the file match the digest in another of its names, so that only this name is wrong."""
        return self._right_names.get(unit[:2], unit[2]) != unit[2]

    def _buffer(self) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = buffers.aligned_buffer(READ_BYTES)
        buffer: memoryview = self._local.buffer
        return buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()


def unit_of(directory: CheckpointDirectory, blob: BlobRecord) -> Unit | None:
    """Return which copy of a blob a checkpoint has, or None if it has no copy of the right size."""
    try:
        status = directory.stat_blob(blob.digest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino, blob.digest) if blobs.has_size(status, blob.nbytes) else None


def _wanted(directory: CheckpointDirectory, indexes: Iterable[int], only: Container[Unit]) -> list[int]:
    """Return the indexes of missing blobs and of blobs to be read, in the order of `only` if it is a mapping."""
    units = {index: unit_of(directory, directory.manifest.stored[index]) for index in indexes}
    found = [index for index, unit in units.items() if unit is None or unit in only]
    if isinstance(only, Mapping):
        found.sort(key=lambda index: only.get(units[index], -1))
    return found


def _pieces(manifest: Manifest) -> dict[int, set[Piece]]:
    """Return the pieces in each plain file according to the manifest, by the index of the file."""
    pieces: dict[int, set[Piece]] = defaultdict(set)
    places = manifest.places
    for storage in manifest.storages:
        for extent in storage.extents:
            if (place := places[extent.blob]) is not None:
                pieces[place].add((extent.piece, extent.offset, extent.length))
    return pieces


class Teller:
    """Determines which values and files of a checkpoint are affected by damaged blobs.

    The cost for each damaged blob does not depend on the total number of blobs.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._storages: dict[int, list[tuple[int, Piece | None]]] | None = None
        self._values: dict[int, list[int]] = defaultdict(list)
        self._files: dict[int, list[int]] = defaultdict(list)
        self._spellings: dict[str, str] = {}
        self._by_storages: dict[frozenset[int], tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def damage(self, index: int, checked: Checked) -> Damage:
        """Return the damage caused by file number `index`."""
        names, files = self._hurt_by(index, checked)
        message = checked.problem or next(iter(checked.bad.values()))
        affects = checked.absent or bool(checked.bad) or bool(names or files)
        run, step = self._manifest.run, self._manifest.step
        if not affects:
            message += f"; {run}@{step} does not use the damaged bytes"
        return Damage(run, step, names, self._manifest.stored[index].digest, message, affects, files)

    def _hurt_by(self, index: int, checked: Checked) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self._storages is None:
            self._storages = self._look()
            self._spellings = spellings(leaf.name for leaf in self._manifest.leaves)
        hurt = frozenset(storage for storage, piece in self._storages[index] if piece is None or piece in checked.bad)
        if hurt not in self._by_storages:
            leaves = sorted({leaf for storage in hurt for leaf in self._values.get(storage, ())})
            files = sorted({file for storage in hurt for file in self._files.get(storage, ())})
            self._by_storages[hurt] = (
                tuple(self._spellings[self._manifest.leaves[leaf].name] for leaf in leaves),
                tuple(self._manifest.files[file].path for file in files),
            )
        return self._by_storages[hurt]

    def _look(self) -> dict[int, list[tuple[int, Piece | None]]]:
        """Return the storages and pieces in each file, and record the values and committed files in each storage.

        None stands for a piece that is not in the file but is decoded from it, directly or as a base. Any damage of the
        file may damage such a piece.
        """
        storages: dict[int, list[tuple[int, Piece | None]]] = defaultdict(list)
        numbers = {file.digest: number for number, file in enumerate(self._manifest.stored)}
        places = self._manifest.places
        for i, storage in enumerate(self._manifest.storages):
            for extent in storage.extents:
                if (place := places[extent.blob]) is not None:
                    storages[place].append((i, (extent.piece, extent.offset, extent.length)))
                    continue
                for digest in self._manifest.files_of(extent.blob):
                    storages[numbers[digest]].append((i, None))
        for i, leaf in enumerate(self._manifest.leaves):
            self._values[leaf.storage].append(i)
        for i, file in enumerate(self._manifest.files):
            for number in set(file.storages):
                self._files[number].append(i)
        return storages
