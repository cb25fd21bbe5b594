"""What this process has seen of the store, so that a save in a large one does not look at all of it again.

Reading a manifest of 20,000 tensors takes half a second. Inode and times identify the file: a manifest
never changes, and a write into it changes its times.
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
"""Blobs that all remembered manifests name together at most; about 40 MB."""
_AS_BLOBS = 8
"""The weight of a manifest beside its blobs."""
_TICK_NS = 50_000_000
"""Longer than the clock of any kernel that stamps files stands still (10 ms at 100 Hz)."""
# Filesystems with times of whole seconds: two changes in one second look alike, so such a stamp is not trusted.
_SECOND_NS = 10**9

FileStamp = tuple[int, int, int, int, int]

_mutex = threading.RLock()  # a signal handler may save while this thread holds it


def _renew_in_child() -> None:
    global _mutex  # noqa: PLW0603
    _mutex = threading.RLock()  # another thread of the parent may hold the old one for ever


os.register_at_fork(after_in_child=_renew_in_child)


def file_stamp(dir_fd: int) -> FileStamp:
    """Return which file the manifest in an open directory is; to be asked before it is read."""
    status = os.stat(MANIFEST, dir_fd=dir_fd, follow_symlinks=False)
    # ctime as well: mtime can be set back by who writes into a manifest, ctime cannot.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class ManifestCache:
    """What manifests say, without their leaves; may be used from several threads."""

    def __init__(self) -> None:
        self._known: dict[FileStamp, tuple[CheckpointInfo, Manifest | None]] = {}
        self._blob_count = 0

    def recall(self, stamp: FileStamp) -> tuple[Manifest, str] | None:
        """Return a manifest and its id, if all of that very file was read; else None."""
        info, manifest = self._known.get(stamp, (None, None))
        return None if info is None or manifest is None else (manifest, info.id)

    def recall_facts(self, stamp: FileStamp) -> CheckpointInfo | None:
        """Return what a manifest says about the checkpoint as a whole, if that very file was seen; else None."""
        return self._known.get(stamp, (None, None))[0]

    def remember(self, stamp: FileStamp, manifest: Manifest, manifest_id: str) -> None:
        """Take note of a manifest; the oldest are forgotten when there are too many."""
        # Leaves of 20,000 tensors take tens of MB of the trainer; only the blobs are needed again.
        slim = replace(manifest, leaves=(), storages=(), state=None)
        self._note(stamp, CheckpointInfo.of(manifest, manifest_id), slim)

    def remember_facts(self, stamp: FileStamp, info: CheckpointInfo) -> None:
        """As `remember`, where no more was read."""
        self._note(stamp, info, None)

    def _note(self, stamp: FileStamp, info: CheckpointInfo, manifest: Manifest | None) -> None:
        with _mutex:
            known = self._known.pop(stamp, None)
            if known is not None:
                self._blob_count -= _weight(known[1])
                manifest = manifest or known[1]
            self._known[stamp] = (info, manifest)
            self._blob_count += _weight(manifest)
            # At least the newest stays: it is the one that the next save asks for.
            while self._blob_count > _MOST_BLOBS and len(self._known) > 1:
                _, oldest = self._known.pop(next(iter(self._known)))
                self._blob_count -= _weight(oldest)


def _weight(manifest: Manifest | None) -> int:
    return _AS_BLOBS + (len(manifest.stored) if manifest is not None else 0)


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The directory of a run as it was seen."""

    stamp: RunStamp | None = None  # none: it is to be listed again
    names: dict[str, int] = field(default_factory=dict)  # everything in it with its inode number
    published: dict[CheckpointKey, int] = field(
        default_factory=dict
    )  # inode number of the directory of each checkpoint
    # Those of them whose place in the order of commits has not been looked at.
    unsure: frozenset[CheckpointKey] = frozenset()
    steps: dict[int, tuple[CheckpointKey, ...]] = field(default_factory=dict)  # all of them, by step


class DirectoryCache:
    """The directories of checkpoints: a run is listed when it has changed, and what is new in it is looked at.

    A directory that keeps its times and its link count has the names that it had, where links count subdirectories.
    Of older kernels, whose clock for files stands still for some milliseconds, that holds but for who changes it
    twice in such a tick. What this process adds or takes away is noted, not listed: listing 10,000 takes 12 ms on two
    cores.

    May be used from several threads without a lock: each record is right for its stamp, whichever stays in the end.
    What is returned must not be changed.
    """

    def __init__(self) -> None:
        self._runs: dict[str, RunSeen] = {}

    @property
    def known_count(self) -> int:
        """How many checkpoints there were at the last look; 0: it was not looked."""
        return sum(len(seen.published) for seen in self._runs.values())

    def look(self, layout: Layout) -> dict[str, RunSeen]:
        """Return what is there now, by run."""
        runs = {run: self._look(layout, run) for run in layout.runs()}
        # Runs that are gone must go here too, so what was seen replaces what was known.
        self._runs = dict(runs)
        return runs

    def of_step(self, layout: Layout, run: str, step: int) -> list[CheckpointKey]:
        """Return the keys of the directories of one step that are there now."""
        if layout.shared:  # all would be listed each time, and the names of one step take a quarter of that
            return layout.of_step(run, step)
        self._runs[run] = seen = self._look(layout, run)
        return sorted(seen.steps.get(step, ()))

    def _look(self, layout: Layout, run: str) -> RunSeen:
        seen = self._runs.get(run, RunSeen())
        # One stat for each run instead of a list: with 10,000 checkpoints that is 12 ms a save.
        if seen.stamp is None or seen.stamp != layout.run_stamp(run):
            return _listed(layout, run, seen)
        return seen

    def judged(self, runs: Mapping[str, RunSeen], unsure: set[CheckpointKey]) -> None:
        """Take note that of what `look` returned all but these are known in the order of commits."""
        for run, seen in runs.items():
            # By identity: another thread may have seen a newer state of the run meanwhile, which was not judged.
            if self._runs.get(run) is seen:
                self._runs[run] = replace(seen, unsure=frozenset(unsure & seen.published.keys()))

    def changed(self, place: CheckpointKey, inode: int | None, change: RunChange | None) -> None:
        """Take note of the checkpoint with this inode number that was published here; None: that was dropped here.

        `change` is the run before and after, while no other process could drop anything in it, or unknown.
        """
        try:
            self._runs[place.run] = _after_change(self._runs.get(place.run, RunSeen()), place, inode, change)
        except MemoryError:  # what was changed is durable, and no failure; all is listed the next time
            self._runs = {}


def _after_change(seen: RunSeen, place: CheckpointKey, inode: int | None, change: RunChange | None) -> RunSeen:
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
    # Only where nothing happened between the last list and this change; else a checkpoint of another process is missed.
    if change is not None and change.before is not None and change.before == seen.stamp:
        stamp = _trusted(change.after, published)
    return RunSeen(stamp, names, published, seen.unsure - {place}, steps)


def _listed(layout: Layout, run: str, before: RunSeen) -> RunSeen:
    # The stamp before the list and again behind it: what changes in between is in one of the two.
    begun_ns, stamp = time.time_ns(), layout.run_stamp(run)
    listed = layout.listed(run)
    # A change in the same tick of the kernel's clock would leave the times as they are.
    if stamp != layout.run_stamp(run) or not _is_settled(stamp, begun_ns):
        stamp = None
    names = {name: inode for name, inode, _ in listed}
    # Only times have changed: nothing has to be looked into.
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
        else:  # looked at again the next time
            del names[name]
            stamp = None
    steps: dict[int, tuple[CheckpointKey, ...]] = {}
    for key in published:
        steps[key.step] = (*steps.get(key.step, ()), key)
    return RunSeen(_trusted(stamp, published), names, published, frozenset(unsure), steps)


def _trusted(stamp: RunStamp | None, published: Collection[CheckpointKey]) -> RunStamp | None:
    """Return the stamp if by its link count the checkpoints are all that is there, and its times are fine enough."""
    if stamp is None or stamp.link_count != len(published) + 2 or stamp.ctime_ns % _SECOND_NS == 0:
        return None
    return stamp


def _is_settled(stamp: RunStamp | None, now_ns: int) -> bool:
    """Whether any change from now on gives other times: the kernel's clock has moved on since the last one."""
    return stamp is not None and max(stamp.mtime_ns, stamp.ctime_ns) + _TICK_NS < now_ns


class HighWaterMark:
    """The greatest number seen. It is raised in one step, which no exception of a signal handler splits."""

    def __init__(self) -> None:
        self._heap = [0]

    @property
    def value(self) -> int:
        """0 at first."""
        return self._heap[0]

    def raise_to(self, number: int) -> None:
        """Keep the greater of both."""
        heapq.heappushpop(self._heap, number)
