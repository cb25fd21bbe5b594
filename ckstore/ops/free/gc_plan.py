"""Plan a gc: its steps and their effect.

gc carries out the plan, and a dry run only reports it. Planning changes nothing, except outdated rows of the catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse
from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import StorePath, with_open_parents
from ckstore.model.digest import is_digest
from ckstore.model.lazy_property import LazyProperty
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.gc_report import GcPlan, NextToFree
from ckstore.model.reports.held_blobs import LinkedBlob, PlannedBlob
from ckstore.objects import trash
from ckstore.objects.collector import Collected
from ckstore.objects.generations import other_generations
from ckstore.objects.last_links import LastLink, NameCount, OpenFileCheck, blobs_in
from ckstore.objects.layout import BLOBS
from ckstore.ops.api_calls import describe_error
from ckstore.ops.context import Context, tags_by_checkpoint
from ckstore.ops.index.reconcile import reconcile_one
from ckstore.ops.refs.listing import with_superseded
from ckstore.ops.refs.protection import pins_by_id

_LOOKS = 5
_CATALOG_TIMEOUT_S = 5.0


def plan_gc(
    context: Context, dropping: Collection[CheckpointKey] = (), *, forecast: bool = True, purge: bool = False
) -> GcPlan:
    """Return what gc would do now, or after the checkpoints `dropping` were dropped.

    Args:
        context: The store.
        dropping: Checkpoints to treat as dropped.
        forecast: Whether to also determine the effect of each step. This requires checks of each blob that gc repeats
            later, so the gc after a save passes False.
        purge: Whether to include dropped checkpoints in trash that could still be restored.
    """
    layout = context.layout
    waiting = trash.waiting_blobs(layout, purge=purge)
    plan = GcPlan(
        dead_stagings=tuple(trash.dead_stagings(layout)),
        trash=tuple(name for name in trash.due(layout, purge=purge) if not trash.in_use(layout.trash / name)),
        unused=tuple(digest for digest, _ in context.catalog.unused() if digest not in waiting),
        waits_for_grace=not layout.view.frees_at_once,
    )
    return _foreseen(context, plan, dropping) if forecast else plan


def _foreseen(context: Context, plan: GcPlan, dropping: Collection[CheckpointKey]) -> GcPlan:
    """Return the plan with the blobs that it will free, and the blobs that it will not free, with reasons."""
    layout = context.layout
    going, judge = NameCount(), OpenFileCheck(leases=layout.view.sees_locks)
    leaving = [layout.staging / name for name in plan.dead_stagings]
    touched: set[str] = set()
    for path in (layout.trash / name for name in plan.trash):
        if dirfd_stat.is_directory(path):
            leaving.append(path)
        elif is_digest(digest := path.name.partition(".")[0]):  # a blob that an earlier gc marked and did not delete
            touched.add(digest)
            going.add(digest, path)
    leaving += [layout.checkpoint(key) for key in dropping]
    for path, held_path in with_open_parents((path, path) for path in leaving):  # opens each parent only once
        touched.update(going.add_checkpoint(path, held_path))
    unused = {*plan.unused}
    if touched:
        unused |= context.catalog.without_use(touched - unused, without=dropping)
    going.add_canonical(map(layout.blob, sorted(unused)))
    # A file is freed if the number of links that the plan removes equals the link count of the file.
    lasts = going.lasts()
    seen = judge.look_for(lasts)
    held: list[LastLink] = []
    free: list[LastLink] = []
    for last, path in with_open_parents((last, last.path) for last in lasts):
        # Use the open parent only for names in blobs/, since many names share each of these directories, and no opener
        # renames them.
        asked = replace(last, path=path) if last.path.parts[0] == layout.blobs.name else last
        with suppress(FileNotFoundError):  # an opener has moved it to trash, where the next gc checks it
            (held if judge.is_held(asked, seen) else free).append(last)
    linked = linked_outside(context, going.linked(unused), dropping)
    idle = not (free or held or linked)
    return replace(
        plan,
        unused=tuple(sorted(unused)),
        blobs=tuple(PlannedBlob(last.digest, last.status.st_size) for last in free),
        held=tuple(judge.held(last, seen) for last in held),
        linked_outside=linked,
        dead_pack_bytes=context.catalog.dead_pack_bytes(dropping),
        unseen_processes=judge.unseen_count,
        next_to_free=next_to_free(context) if idle else None,
    )


def linked_outside(
    context: Context, sizes: Mapping[str, int], dropping: Collection[CheckpointKey] = ()
) -> tuple[LinkedBlob, ...]:
    """Return the blobs among `sizes` that are unused and have links outside the store.

    The checkpoints `dropping` count as dropped.
    """
    # A running save creates and moves links, so one pass may miss a link. Counts are accepted when two passes in a row
    # find the same directories and the same counts. If the store is too busy for that, nothing is reported, and the
    # next gc checks again.
    if not sizes:
        return ()
    seen = None
    for _ in range(_LOOKS):
        unused = context.catalog.without_use(set(sizes), without=dropping)
        names = _Names(context, dropping)
        counts = {digest: count for digest in sorted(unused) if (count := names.outside(digest)) > 0}
        if not counts:
            return ()
        if seen != (names.listing, counts):
            seen = (names.listing, counts)
            continue
        # The rows of some kept checkpoints may be outdated: a killed pull may have left a checkpoint partly evicted, or
        # another member of the group may have pulled a checkpoint, but could not change the time of its manifest.
        inside = names.in_kept(counts.keys())
        with suppress(CatalogUnavailable, InUse):
            for key in inside:
                reconcile_one(context, key, timeout_s=_CATALOG_TIMEOUT_S)
        outside = counts.keys() - {digest for digests in inside.values() for digest in digests}
        return tuple(LinkedBlob(digest, sizes[digest], counts[digest]) for digest in sorted(outside))
    return ()


class _Names:
    """The links to blobs in the store, except those in kept checkpoints whose rows in the catalog are current."""

    def __init__(self, context: Context, dropping: Collection[CheckpointKey]) -> None:
        layout = self._layout = context.layout
        known = context.catalog.listing()
        stagings = tuple(layout.staging / name for name in trash.names_in(layout.staging))
        trashed = tuple(layout.trash / name for name in trash.names_in(layout.trash))
        unknown: list[StorePath] = []
        self._kept: list[CheckpointKey] = []
        for key, stamp in layout.stamps().items():
            if key in dropping or known.get(key) != stamp:
                unknown.append(layout.checkpoint(key))
            else:
                self._kept.append(key)
        self.listing = (stagings, trashed, tuple(unknown))

    @LazyProperty
    def _loose(self) -> list[StorePath]:
        """Other links to blobs: the temporary links of running saves, and marked blobs in trash."""
        stagings, trashed, unknown = self.listing
        found = [path for path in trashed if is_digest(path.name.partition(".")[0])]
        for folder in (*stagings, *trashed, *unknown):
            # A save of another member of the group may not have given the group access to its directory yet. This is
            # safe: if a link is not counted, its blob is kept.
            with suppress(PermissionError):
                if dirfd_stat.is_directory(folder):
                    found += [folder / name for name in trash.names_in(folder) if name.startswith("new-")]
        return found

    def outside(self, digest: str) -> int:
        """Return how many links outside the store the canonical file has, assuming that no kept checkpoint uses it."""
        canonical = self._layout.blob(digest)
        inside = [folder / BLOBS / digest for folders in self.listing for folder in folders]
        # An eviction moves blobs/ of a checkpoint to trash, so the blobs are direct entries of the moved directory.
        inside += [folder / digest for folder in self.listing[1]]
        names = NameCount()
        for path in (canonical, *inside, *self._loose):
            names.add(digest, path)
        found = dirfd_stat.find(canonical)
        return 0 if found is None else max(0, found.st_nlink - names.counts[found.st_dev, found.st_ino])

    def in_kept(self, digests: Collection[str]) -> dict[CheckpointKey, set[str]]:
        """Return the kept checkpoints with current rows that have some of these blobs, each with the blobs it has."""
        found = {}
        for key in self._kept:
            if here := {*trash.names_in(self._layout.checkpoint(key) / BLOBS)}.intersection(digests):
                found[key] = here
        return found


def differences(context: Context, plan: GcPlan, done: Collected, swept: Collection[str]) -> tuple[str, ...]:
    """Return a line for each difference between a plan and its result (`done` and `swept`), with the reason."""
    planned, freed = Counter(blob.digest for blob in plan.blobs), Counter(blob.digest for blob in done.freed)
    kept = {blob.digest: blob for blob in plan.held}
    said = [
        f"staging/{name} is kept: its save is still running, or another process removed it"
        for name in plan.dead_stagings
        if name not in swept and f"staging/{name}" not in done.failed
    ]
    said += [f"trash/{name} is kept: another process uses it, or it belongs to another user" for name in done.left]
    said += [f"{path} is kept: {describe_error(error)}" for path, error in done.failed.items()]
    said += [f"{digest} was not freed: {_why_not(context, digest, done)}" for digest in sorted(planned - freed)]
    for digest in sorted(freed - planned):
        was = kept[digest].reason if digest in kept else "in use under another name"
        said.append(f"{digest} was freed, although the plan kept it: {was}")
    return tuple(said)


def _why_not(context: Context, digest: str, done: Collected) -> str:
    if digest in done.held:
        return done.held[digest].reason
    if not context.catalog.without_use({digest}):
        return "a checkpoint uses it again"
    try:
        canonical = dirfd_stat.find(context.layout.blob(digest))
    except PermissionError:
        return "it is in a directory of another user"
    if canonical is None:
        return "it has already been removed"
    return "it now has another link" if canonical.st_nlink > 1 else "it was written again; the next gc checks it"


def next_to_free(context: Context) -> NextToFree | None:
    """Return what deleting the oldest unprotected checkpoint would free, or None if there is no such checkpoint.

    The newest checkpoint does not count.
    """
    # The catalog determines which checkpoint is the oldest. Link counts determine how much its deletion would free.
    try:
        tagged, pinned = tags_by_checkpoint(context.layout), pins_by_id(context, datetime.now(UTC))
        listed = context.catalog.infos()
    except CkstoreError:  # the result is only advice
        return None
    for info in with_superseded(listed)[:-1]:  # the last is the newest
        # gc drops a superseded checkpoint anyway, and a user cannot delete it by its name, which means a newer one.
        if info.superseded or info.key.any_generation in tagged or info.id in pinned:
            continue
        keys = (info.key, *other_generations(context.layout, info.key, info.id))
        folders = [context.layout.checkpoint(key) for key in keys]
        if blobs_in(folders[0] / BLOBS):  # an evicted checkpoint has no local data
            freed = freed_in_turn(context, folders)
            return NextToFree(info.name, sum(nbytes for one in freed for _, nbytes in one))
    return None


def freed_in_turn(context: Context, folders: Iterable[StorePath]) -> list[list[tuple[str, int]]]:
    """Return, for each directory, the blobs (digest, size) that its removal frees if all are removed one by one."""
    # A blob is freed when its last link is removed. The link count of the blob shows which link is the last.
    going = NameCount()
    canonical: set[str] = set()
    freed = []
    for folder in folders:
        gone = []
        for digest, there in blobs_in(folder / BLOBS):
            lasts = [going.add(digest, folder / BLOBS / digest, there)]
            if digest not in canonical:  # count the canonical link once; it may also be missing
                canonical.add(digest)
                lasts.append(going.add(digest, context.layout.blob(digest)))
            gone += [(digest, last.st_size) for last in lasts if last is not None]
        freed.append(gone)
    return freed
