"""Caches of facts about a store in this process, so that a save does not check a large store completely.

Reading a manifest of 20,000 tensors takes half a second. A cached manifest is identified by its device,
inode, size and times. A manifest never changes, and if another program writes to one, its times change.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey, key_of
from ckstore.objects.layout import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ckstore.model.manifest.manifest import Manifest
    from ckstore.objects.layout import Layout, RunChange, RunStamp


_MOST_BLOBS = 200_000
"""The maximum number of blobs in all cached manifests. The records of these blobs take about 40 MB."""
_AS_BLOBS = 8
"""The memory for a manifest without its blobs, expressed as a number of blobs."""
_TICK_NS = 50_000_000
"""An upper bound for the resolution of file times in any kernel (10 ms at 100 Hz)."""
# On filesystems with times in whole seconds, two changes in one second look alike, so such a stamp is not trusted.
_SECOND_NS = 10**9

FileStamp = tuple[int, int, int, int, int]

_mutex = threading.RLock()  # a signal handler may save while this thread holds it


def _renew_in_child() -> None:
    global _mutex  # noqa: PLW0603
    _mutex = threading.RLock()  # a thread that does not exist in the child may have held the old mutex


os.register_at_fork(after_in_child=_renew_in_child)


def file_stamp(dir_fd: int) -> FileStamp:
    """Return the identity of the manifest file in an open directory; call it before the file is read."""
    status = os.stat(MANIFEST, dir_fd=dir_fd, follow_symlinks=False)
    # The stamp includes ctime, because a program that writes to a manifest can reset mtime but not ctime.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class ManifestCache:
    """A cache of manifests without their leaves, or only of the facts in them. Several threads may use it."""

    def __init__(self) -> None:
        self._known: dict[FileStamp, tuple[CheckpointInfo, Manifest | None]] = {}
        self._blob_count = 0

    def recall(self, stamp: FileStamp) -> tuple[Manifest, str] | None:
        """Return the manifest with this stamp, without its leaves, and its id.

        Return None if the cache does not have the manifest, or has only the facts about its checkpoint.
        """
        info, manifest = self._known.get(stamp, (None, None))
        return None if info is None or manifest is None else (manifest, info.id)

    def recall_facts(self, stamp: FileStamp) -> CheckpointInfo | None:
        """Return the facts about the checkpoint of the manifest with this stamp, or None if the cache lacks them."""
        return self._known.get(stamp, (None, None))[0]

    def remember(self, stamp: FileStamp, manifest: Manifest, manifest_id: str) -> None:
        """Remember a manifest. If the cache is full, the manifests that were remembered first are removed from it."""
        # Leaves of 20,000 tensors take tens of MB of the trainer's memory, and they are not needed again.
        slim = replace(manifest, leaves=(), storages=(), state=None)
        self._note(stamp, CheckpointInfo.of(manifest, manifest_id), slim)

    def remember_facts(self, stamp: FileStamp, info: CheckpointInfo) -> None:
        """Remember a manifest of which only the facts were read."""
        self._note(stamp, info, None)

    def _note(self, stamp: FileStamp, info: CheckpointInfo, manifest: Manifest | None) -> None:
        with _mutex:
            known = self._known.pop(stamp, None)
            if known is not None:
                self._blob_count -= _weight(known[1])
                manifest = manifest or known[1]
            self._known[stamp] = (info, manifest)
            self._blob_count += _weight(manifest)
            # Keep at least the newest manifest, which the next save needs.
            while self._blob_count > _MOST_BLOBS and len(self._known) > 1:
                _, oldest = self._known.pop(next(iter(self._known)))
                self._blob_count -= _weight(oldest)


def _weight(manifest: Manifest | None) -> int:
    return _AS_BLOBS + (len(manifest.stored) if manifest is not None else 0)


@dataclass(frozen=True, slots=True)
class RunListing:
    """The directory of a run when it was last listed."""

    stamp: RunStamp | None = None  # None if the directory must be listed again
    names: dict[str, int] = field(default_factory=dict)  # every name in the directory -> its inode number
    # Checkpoint -> the inode number of its directory.
    published: dict[CheckpointKey, int] = field(default_factory=dict)
    # The checkpoints whose sequence number, which defines their place in the order of commits, was not checked.
    unsure: frozenset[CheckpointKey] = frozenset()
    steps: dict[int, tuple[CheckpointKey, ...]] = field(default_factory=dict)  # all checkpoints, by step


class DirectoryCache:
    """The directories of checkpoints. A run is listed again only if it has changed, and only new names are checked.

    On a filesystem whose link counts include subdirectories, a directory with the same times and link count has the
    same names, with one exception: on older kernels, file times have a resolution of some milliseconds, so two changes
    within one tick look like one. A change by this process is recorded without listing the run, since a listing of
    10,000 checkpoints takes 12 ms on two cores.

    It may be used from several threads without a lock, because every record is right for its stamp, no matter which
    thread stores its record last. Callers must not change returned values.
    """

    def __init__(self) -> None:
        self._runs: dict[str, RunListing] = {}

    @property
    def known_count(self) -> int:
        """The number of checkpoints in the cache. It is 0 before the first call of `look` or `of_step`."""
        return sum(len(seen.published) for seen in self._runs.values())

    def look(self, layout: Layout) -> dict[str, RunListing]:
        """Return the current state of each run."""
        runs = {run: self._look(layout, run) for run in layout.runs()}
        # Replace the whole cache, so that removed runs are dropped from it.
        self._runs = dict(runs)
        return runs

    def of_step(self, layout: Layout, run: str, step: int) -> list[CheckpointKey]:
        """Return the keys of the existing directories of one step."""
        # Without reliable stamps, the whole run would be listed each time. A search for one step takes a quarter of
        # that time.
        if not layout.view.sees_changes:
            return layout.of_step(run, step)
        self._runs[run] = seen = self._look(layout, run)
        return sorted(seen.steps.get(step, ()))

    def _look(self, layout: Layout, run: str) -> RunListing:
        seen = self._runs.get(run, RunListing())
        # This costs one stat per run instead of a listing, which takes 12 ms for 10,000 checkpoints.
        if seen.stamp is None or seen.stamp != layout.run_stamp(run):
            return _listed(layout, run, seen)
        return seen

    def judged(self, runs: Mapping[str, RunListing], unsure: set[CheckpointKey]) -> None:
        """Record that the sequence numbers of the checkpoints that `look` returned are known, except those in `unsure`.

        `runs` is the result of that call of `look`.
        """
        for run, seen in runs.items():
            # Compare by identity, since another thread may have stored a newer state of the run, which was not checked.
            if self._runs.get(run) is seen:
                self._runs[run] = replace(seen, unsure=frozenset(unsure & seen.published.keys()))

    def changed(self, place: CheckpointKey, inode: int | None, change: RunChange | None) -> None:
        """Record that this process published or dropped a checkpoint.

        Args:
            place: The checkpoint.
            inode: The inode number of its directory. If None, the checkpoint was dropped.
            change: The status of the run before and after the change, or None if it is unknown. The caller must have
                held the exclusive lock of the run in between, so that no other process dropped a checkpoint.
        """
        try:
            self._runs[place.run] = _after_change(self._runs.get(place.run, RunListing()), place, inode, change)
        except MemoryError:  # the change itself is durable, so no error is raised; the next `look` lists everything
            self._runs = {}


def _after_change(seen: RunListing, place: CheckpointKey, inode: int | None, change: RunChange | None) -> RunListing:
    names, published, steps, name = dict(seen.names), dict(seen.published), dict(seen.steps), place.directory
    others = tuple(key for key in steps.pop(place.step, ()) if key != place)
    if inode is None:
        published.pop(place, None)
        names.pop(name, None)
    else:
        published[place] = names[name] = inode
        others = (*others, place)
    if others:
        steps[place.step] = others
    stamp = None
    # Keep a stamp only if nothing changed between the last listing and this change. Otherwise the record could lack a
    # checkpoint.
    if change is not None and change.before is not None and change.before == seen.stamp:
        stamp = _trusted(change.after, published)
    return RunListing(stamp, names, published, seen.unsure - {place}, steps)


def _listed(layout: Layout, run: str, before: RunListing) -> RunListing:
    # Take the stamp before and after the listing, to detect a change in between.
    begun_ns, stamp = time.time_ns(), layout.run_stamp(run)
    listed = layout.listed(run)
    # A change in the same tick of the kernel's clock would not change the times.
    is_settled = stamp is not None and max(stamp.mtime_ns, stamp.ctime_ns) + _TICK_NS < begun_ns
    if stamp != layout.run_stamp(run) or not is_settled:
        stamp = None
    names = {name: inode for name, inode, _ in listed}
    # If only the times have changed, there is no directory to check.
    if names == before.names:
        return replace(before, stamp=_trusted(stamp, before.published))
    published, unsure = dict(before.published), set(before.unsure)
    for name, _ in before.names.items() - names.items():
        if (key := key_of(run, name)) is not None:
            published.pop(key, None)
            unsure.discard(key)
    for name, inode, is_directory in listed:
        if before.names.get(name) == inode or (key := key_of(run, name)) is None:
            continue
        if is_directory:
            published[key] = inode
            unsure.add(key)
        else:  # check this name again the next time
            del names[name]
            stamp = None
    steps: dict[int, tuple[CheckpointKey, ...]] = {}
    for key in published:
        steps[key.step] = (*steps.get(key.step, ()), key)
    return RunListing(_trusted(stamp, published), names, published, frozenset(unsure), steps)


def _trusted(stamp: RunStamp | None, published: Collection[CheckpointKey]) -> RunStamp | None:
    """Return the stamp if its link count matches the checkpoints and its times are precise enough, or None."""
    if stamp is None or stamp.link_count != len(published) + 2 or stamp.ctime_ns % _SECOND_NS == 0:
        return None
    return stamp


class HighWaterMark:
    """The greatest number so far. One call of C code raises it, so no signal handler can interrupt the change."""

    def __init__(self) -> None:
        self._heap = [0]

    @property
    def value(self) -> int:
        """The number, initially 0."""
        return self._heap[0]

    def raise_to(self, number: int) -> None:
        """Raise the number to `number`, if that is greater."""
        heapq.heappushpop(self._heap, number)
