"""Checks with listings whether a remote still has checkpoints, since another program may have deleted objects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from ckstore.errors import CkstoreError, NoSuchRemote
from ckstore.fs import locks
from ckstore.model.checkpoint.mark import MarkEntry
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.manifest.stored import PLAIN_FORM
from ckstore.model.remote.remote_only import RemoteHolder
from ckstore.model.reports.verify_report import Away, VerifyReport
from ckstore.model.times import text_of_time
from ckstore.model.words import counted
from ckstore.objects.checkpoints import judge_blobs, manifest_in
from ckstore.objects.documents import marks
from ckstore.objects.remote.remote_only import holders_at
from ckstore.ops.api_calls import why_of
from ckstore.ops.check.validity import remember
from ckstore.ops.context import Context
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import infos
from ckstore.remote.documents.condemned_names import read_condemned
from ckstore.remote.objects import Remote
from ckstore.remote.push_plan import place_of, sizes_there
from ckstore.remote.record import read_record
from ckstore.remote.remote_opener import OtherStore, open_source, source_of, uuid_of
from ckstore.remote.source import ObjectSource


class Absent(NamedTuple):
    """The checkpoints that a remote lacks, among those that were checked.

    Attributes:
        missing: Id of a checkpoint with missing objects -> a sentence about the missing objects.
        removed: Ids of checkpoints with local bytes that a policy or a user removed from the remote.
    """

    missing: dict[str, str]
    removed: frozenset[str] = frozenset()


def absent_at(context: Context, there: Remote | OtherStore, listed: Iterable[CheckpointInfo]) -> Absent:
    """Return the checkpoints of `listed` that a remote lacks completely or in part, without reading blobs.

    Raises:
        RemoteError: The remote does not answer.
    """
    if not isinstance(there, Remote):
        places = {*source_of(there).places()}
        evicted = {info.id for info in infos(there.context, superseded=True) if info.elsewhere}
        why = {info.id: "it is missing" for info in listed if place_of(info) not in places}
        return Absent(dict.fromkeys(evicted.intersection(info.id for info in listed), "it was evicted there") | why)
    source = ObjectSource(there.objects, there.name)
    checkpoints = source.listed()
    places = {*checkpoints.places}
    found: dict[str, str] = {}
    removed: set[str] = set()
    needed: dict[str, Sequence[BlobRecord]] = {}
    for info in listed:
        place = place_of(info)
        documents = checkpoints.keys.get(place, ())
        if place not in places:
            if info.elsewhere or place.dropped not in documents:
                found[info.id] = "it is missing"
            else:
                removed.add(info.id)
            continue
        form = source.form(place) if place.plain in documents else PLAIN_FORM
        try:
            with open_directory(context, info) as directory:
                needed[info.id] = form.stored(directory.manifest.blobs)
        except CkstoreError:  # dropped meanwhile, or damaged locally, which `verify` reports
            continue
    known = read_record(context.layout, there.name)
    lacking = {blob.digest for blobs in needed.values() for blob in blobs}
    sizes: dict[str, Collection[int]] = {}
    for _ in range(2):  # twice, since a push may have sent a blob under another name meanwhile
        sizes |= sizes_there(there, read_condemned(there.objects), lacking, known)
        every = (blob for blobs in needed.values() for blob in blobs)
        lacking = {blob.digest for blob in every if blob.nbytes not in sizes.get(blob.digest, ())}
        if not lacking:
            break
    for id, blobs in needed.items():
        if gone := [blob.digest for blob in blobs if blob.digest in lacking]:
            found[id] = f"{len(gone)} of {counted(len(blobs), 'blob')} are missing, such as {gone[0]}"
    return Absent(found, frozenset(removed))


def look_elsewhere(context: Context, report: VerifyReport) -> VerifyReport:
    """Add to a report whether the remotes still have the checkpoints whose bytes only remotes have."""
    away = {(info.run, info.key.directory): info for info in infos(context, superseded=True) if info.elsewhere}
    by_holder: defaultdict[RemoteHolder, list[CheckpointInfo]] = defaultdict(list)
    for info in filter(None, (away.get((one.run, one.directory)) for one in report.elsewhere)):
        for holder in holders_at(context.layout.checkpoint(info.key)):
            by_holder[replace(holder, claim="")].append(info)
    at = text_of_time(datetime.now(UTC))
    whole: set[str] = set()
    lacks: defaultdict[str, list[str]] = defaultdict(list)
    unasked: dict[str, str] = {}
    unsure: set[str] = set()
    for holder, listed in by_holder.items():
        try:
            there = open_source(context, holder.name)
            if uuid_of(there) == holder.uuid:
                missing = absent_at(context, there, listed).missing
            else:
                missing = {info.id: "another remote now has this name" for info in listed}
        except NoSuchRemote as error:
            # The data may still exist: a filesystem may not be mounted, or the remote may be at another place.
            missing = {info.id: error.message for info in listed}
            unsure |= missing.keys()
        except (CkstoreError, OSError) as error:
            unasked |= {info.id: f"{holder.name} was not queried: {why_of(error)}" for info in listed}
            continue
        whole |= {info.id for info in listed} - missing.keys()
        for id, why in missing.items():
            lacks[id].append(f"{holder.name}: {why}")
    lost = {id: "; ".join(why) for id, why in lacks.items() if id not in whole | unasked.keys() | unsure}
    mark_lost(context, away.values(), lost, whole)

    def looked(one: Away) -> Away:
        info = away.get((one.run, one.directory))
        if info is None:
            return replace(one, unasked="it was restored or dropped meanwhile")
        if info.id in whole:
            return replace(one, as_of=at)
        if info.id in lacks and info.id not in unasked:
            return replace(one, as_of=at, missing="; ".join(lacks[info.id]))
        return replace(one, unasked=unasked.get(info.id, "no remote is known to have it"))

    return replace(report, elsewhere=tuple(looked(one) for one in report.elsewhere))


def mark_lost(
    context: Context, infos: Iterable[CheckpointInfo], lost: Mapping[str, str], whole: Collection[str]
) -> None:
    """Mark evicted checkpoints whose data no remote has as damaged, so that nothing relies on them.

    Args:
        context: The store.
        infos: Evicted checkpoints.
        lost: Ids of checkpoints -> what their remotes lack.
        whole: Ids of checkpoints that a remote has completely. If they have such a mark, it is removed.
    """
    for info in infos:
        if info.id not in lost and (info.id not in whole or not info.damaged):
            continue
        path = context.layout.checkpoint(info.key)
        try:
            with locks.lock_shared(path) as lock:
                before, mark = marks.identity(lock.fd), marks.read_mark(lock.fd)
                absent = judge_blobs(lock.inside, lock.fd, manifest_in(lock.fd, lock.inside)[0]).elsewhere
                if info.id in lost:
                    what = f"the data of {info.name} is only on remotes, which lack it: {lost[info.id]}"
                    remember(context, lock, [MarkEntry(digest, (), what) for digest in sorted(absent)], distrust=False)
                # Other damage was found in local files.
                elif mark is not None and mark.entries and absent.issuperset(entry.blob for entry in mark.entries):
                    context.check_writable()
                    marks.remove_mark(lock, before)
        except (CkstoreError, OSError):  # it was dropped or restored, or this user may not write; `verify` reports both
            continue
