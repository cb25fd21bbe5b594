"""What a remote lists of checkpoints that it is believed to have: another program may have removed objects there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from ckstore.errors import CkstoreError, NoSuchRef
from ckstore.fs import locks
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.verify_report import Away, VerifyReport
from ckstore.model.times import text_of_time
from ckstore.model.words import counted
from ckstore.objects.documents.elsewhere import read_elsewhere
from ckstore.ops.acts import why_of
from ckstore.ops.context import Context
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import infos
from ckstore.remote import keys
from ckstore.remote.asking import ask
from ckstore.remote.documents.condemned import read_condemned
from ckstore.remote.keys import Place
from ckstore.remote.objects import Remote
from ckstore.remote.push_plan import place_of
from ckstore.remote.reach import OtherStore, reach, source_of, uuid_of
from ckstore.remote.source import ObjectSource


def missing_at(context: Context, there: Remote | OtherStore, listed: Iterable[CheckpointInfo]) -> dict[str, str]:
    """Return which of these checkpoints a remote lacks or has in part, by id, and why; no byte of a blob is read.

    Raises:
        RemoteError: The remote does not answer.
    """
    if not isinstance(there, Remote):
        places = {*source_of(there).places()}
        return {info.id: "it is not there" for info in listed if place_of(info) not in places}
    objects, source = there.objects, ObjectSource(there.objects, there.name)
    places = {*source.places()}
    parts = _parts(there)
    sizes = {one.key: one.nbytes for one in objects.list(keys.BLOBS)}
    condemned = read_condemned(objects)
    found: dict[str, str] = {}
    for info in listed:
        place = place_of(info)
        if place not in places:
            # What has its bytes here and was removed there by a rule or by hand is not missing.
            if info.elsewhere or keys.DROPPED not in parts.get(place, ()):
                found[info.id] = "it is not there"
            continue
        encoding = source.encoding(place) if keys.PLAIN in parts[place] else None
        try:
            with open_directory(context, info) as directory:
                blobs = directory.manifest.blobs
        except (NoSuchRef, CkstoreError):  # dropped meanwhile, or damaged here, which is said of it without this
            continue
        files = blobs if encoding is None else encoding.files
        lacking = [one for one in files if sizes.get(keys.blob(str(condemned.name(one.digest)))) != one.nbytes]
        if lacking:  # once more: a push may have brought it under another name since the listing
            condemned = read_condemned(objects)
            names = {keys.blob(str(condemned.name(one.digest))): one for one in lacking}
            now = {key for key, listed in ask(objects, names).items() if listed.nbytes == names[key].nbytes}
            lacking = [one for key, one in names.items() if key not in now]
        if lacking:
            found[info.id] = (
                f"{len(lacking)} of {counted(len(files), 'blob')} are not there, such as {lacking[0].digest}"
            )
    return found


def _parts(there: Remote) -> dict[Place, set[str]]:
    """Return which objects each checkpoint has, by the last parts of their keys."""
    found: defaultdict[Place, set[str]] = defaultdict(set)
    for one in there.objects.list(keys.CHECKPOINTS):
        if (place := keys.place_in(one.key, keys.OF_PLACE)) is not None:
            found[place].add(one.key.rpartition("/")[2])
    return found


def look_elsewhere(context: Context, report: VerifyReport) -> VerifyReport:
    """Say in a report what remotes list of the checkpoints whose bytes are there alone."""
    if not report.elsewhere:
        return report
    said = {(one.run, one.step) for one in report.elsewhere}
    by_holder: defaultdict[tuple[str, str], list[CheckpointInfo]] = defaultdict(list)
    for info in infos(context, superseded=True):
        if info.elsewhere and info.key.run_step in said:
            for holder in _holders(context, info):
                by_holder[holder].append(info)
    why: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    unasked: dict[tuple[str, int], str] = {}
    whole: set[tuple[str, int]] = set()
    at = text_of_time(datetime.now(UTC))
    for (name, uuid), listed in by_holder.items():
        try:
            missing = _missing_at_holder(context, name, uuid, listed)
        except (CkstoreError, OSError) as error:
            unasked |= {info.key.run_step: f"{name} was not asked: {why_of(error)}" for info in listed}
            continue
        for info in listed:
            if info.id in missing:
                why[info.key.run_step].append(f"{name}: {missing[info.id]}")
            else:
                whole.add(info.key.run_step)

    def looked(one: Away) -> Away:
        place = one.run, one.step
        if place in whole:
            return replace(one, as_of=at)
        if place in unasked:
            return replace(one, unasked=unasked[place])
        return replace(one, as_of=at, missing="; ".join(why[place]))

    return replace(report, elsewhere=tuple(looked(one) for one in report.elsewhere))


def _missing_at_holder(context: Context, name: str, uuid: str, listed: Sequence[CheckpointInfo]) -> Mapping[str, str]:
    there = reach(context, name)
    if uuid_of(there) != uuid:
        return {info.id: "another remote has this name by now" for info in listed}
    return missing_at(context, there, listed)


def _holders(context: Context, info: CheckpointInfo) -> list[tuple[str, str]]:
    with suppress(FileNotFoundError, CkstoreError), locks.lock_shared(context.layout.checkpoint(info.key)) as lock:
        document = read_elsewhere(lock.fd)
        return [] if document is None else [(holder.name, holder.uuid) for holder in document.remotes]
    return []
