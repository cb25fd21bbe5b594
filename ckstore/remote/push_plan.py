"""Plans a push by determining the blobs and checkpoints that the remote lacks. Nothing is encoded or written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from ckstore.errors import BytesElsewhere, CkstoreError
from ckstore.fs import dirfd_stat
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.remote.transfer import TransferPlan
from ckstore.model.words import arguments
from ckstore.objects.checkpoints import holder_names_at
from ckstore.objects.layout import BLOBS
from ckstore.ops.config_file import PUSH_DELTAS, setting_of
from ckstore.ops.context import Context
from ckstore.ops.failures import failure_of, joined
from ckstore.ops.refs.find import open_listed
from ckstore.remote import keys
from ckstore.remote.documents.condemned_names import CondemnedNames, read_condemned
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.key_lookup import look
from ckstore.remote.keys import Place
from ckstore.remote.objects import Remote
from ckstore.remote.record import RemoteRecord, read_record
from ckstore.remote.source import ObjectSource


def plan_push(context: Context, infos: Sequence[CheckpointInfo], remote: Remote) -> TransferPlan:
    """Return the checkpoints and blobs that a push would send now."""
    there = inspect_remote(context, infos, remote, read_record(context.layout, remote.name))
    if there.unreadable:
        raise joined(there.unreadable)
    plan, away, missing = there.plan, {}, {digest for digest, _ in there.plan.missing}
    for info in plan.checkpoints:
        if not info.elsewhere or info.id not in there.lacking:
            continue
        with open_listed(context, info) as directory:
            wanted = missing.intersection(blob.digest for blob in directory.manifest.blobs)
            lacks = any(not dirfd_stat.exists(directory.lock.inside / BLOBS / digest) for digest in wanted)
        if lacks:  # a push reads blobs only from the directory of the checkpoint
            error = only_elsewhere(context, info, remote.name)
            away[info.id] = f"{info.name} cannot be pushed: {error.message if error else 'it was evicted'}"
    if not away:
        return plan
    sendable = [info for info in plan.checkpoints if info.id not in away]
    blobs = _blobs_of_each(context, sendable)[0]
    needed = {blob.digest: blob.nbytes for of_one in blobs.values() for blob in of_one}
    return replace(
        plan,
        new=tuple(info for info in plan.new if info.id not in away),
        missing=tuple((digest, nbytes) for digest, nbytes in plan.missing if digest in needed),
        all_bytes=sum(needed.values()),
        warnings=tuple(away.values()),
    )


def only_elsewhere(context: Context, info: CheckpointInfo, remote: str) -> BytesElsewhere | None:
    """Return the error for an evicted checkpoint that `remote` lacks, with the commands that help.

    Return None if the store knows no remote that has the data.
    """
    holders = holder_names_at(context.layout.checkpoint(info.key))
    at = [name for name in holders if name != remote]
    if at:
        return BytesElsewhere(
            f"data of {info.name} is only on {' and '.join(at)}",
            hint=f"store.pull({info.name!r}, {at[0]!r}) restores it; then push again",
            command_hint=f"ckstore pull --remote {at[0]} {arguments(info.name)} restores it; then push again",
        )
    if not holders:
        return None
    if_any, otherwise = "if another remote has it,", "restores it; then push again. Otherwise"
    return BytesElsewhere(
        f"data of {info.name} is missing: it was evicted to {remote}, which no longer has all of it",
        hint=f"{if_any} store.pull(ref, remote) {otherwise} store.delete(ref) removes the lost checkpoint",
        command_hint=f"{if_any} ckstore pull REF --remote NAME {otherwise} ckstore delete REF removes the lost one",
    )


class RemoteState(NamedTuple):
    """The state of a remote at the beginning of a push.

    Attributes:
        plan: The checkpoints and blobs to send, before anything is encoded.
        lacking: Ids of the checkpoints that the remote lacks or has in part.
        source: The remote, for reading.
        places: Its checkpoints. Without encoding, only those of the plan.
        sizes: For each blob of the plan that the remote has, the sizes of its objects.
        known: The record of earlier checks of the remote.
        nbytes: For each checkpoint id, the number of bytes of its blobs that may be missing on the remote.
        has_looked: Whether `sizes` comes from the remote. Otherwise it comes from earlier records.
        unreadable: Errors of checkpoints that cannot be read locally and are not in the plan, by name.
    """

    plan: TransferPlan
    lacking: set[str]
    source: ObjectSource
    places: set[Place]
    sizes: Mapping[str, Collection[int]]
    known: RemoteRecord
    nbytes: Mapping[str, int] = MappingProxyType({})
    has_looked: bool = False
    unreadable: Mapping[str, CkstoreError] = MappingProxyType({})

    @classmethod
    def nothing(cls, context: Context, remote: Remote) -> RemoteState:
        """Return an empty state, for a push that sends given checkpoints without a plan."""
        plan = TransferPlan("push", remote.name, (), (), (), 0)
        known = read_record(context.layout, remote.name)
        return cls(plan, set(), ObjectSource(remote.objects, remote.name), set(), {}, known)


def believe(context: Context, infos: Sequence[CheckpointInfo], remote: Remote, known: RemoteRecord) -> RemoteState:
    """Return a state like `inspect_remote`, but from the local record and without looking up objects on the remote.

    The caller knows that the remote lacks all of these checkpoints. The result is only an estimate of the missing
    blobs, so a push looks up each blob on the remote before it sends the blob.
    """
    check_takes(remote, context.settings)
    blobs, unreadable = _blobs_of_each(context, infos)
    infos = [info for info in infos if info.id in blobs]
    wanted = {blob.digest: blob.nbytes for of_one in blobs.values() for blob in of_one}
    seen = {digest: known.blobs[digest] for digest in wanted if digest in known.blobs}
    sizes = {digest: {one.nbytes} for digest, one in seen.items() if one.how != "damaged"}
    missing = tuple((digest, nbytes) for digest, nbytes in sorted(wanted.items()) if digest not in sizes)
    plan = TransferPlan("push", remote.name, tuple(infos), tuple(infos), missing, sum(wanted.values()))
    source = ObjectSource(remote.objects, remote.name)
    nbytes = _bytes_of_each(blobs, dict(missing))
    return RemoteState(plan, {info.id for info in infos}, source, set(), sizes, known, nbytes, unreadable=unreadable)


def inspect_remote(
    context: Context, infos: Sequence[CheckpointInfo], remote: Remote, known: RemoteRecord
) -> RemoteState:
    """Determine which of these checkpoints and of their blobs a remote has.

    The cost depends on these checkpoints, not on the size of the remote. If differences are pushed, all checkpoints on
    the remote are also listed.
    """
    check_takes(remote, context.settings)
    source = ObjectSource(remote.objects, remote.name)
    blobs, unreadable = _blobs_of_each(context, infos)
    infos = [info for info in infos if info.id in blobs]
    there = _places_there(source, context, infos, remote, known)
    condemned = read_condemned(remote.objects)
    wanted = {blob.digest: blob.nbytes for of_one in blobs.values() for blob in of_one}
    sizes = sizes_there(remote, condemned, wanted, known)
    missing = {digest: nbytes for digest, nbytes in wanted.items() if nbytes not in sizes.get(digest, ())}
    lacking = {info.id for info in infos if place_of(info) not in there}
    # If a checkpoint is on the remote, its missing blobs may be there under another name or in encoded form.
    others = [info for info in infos if missing and info.id not in lacking]
    others = [info for info in others if any(digest in missing for digest, _ in blobs[info.id])]
    forms = {info.id: source.form(place_of(info)) for info in others}
    stored = {id: form.stored(blobs[id]) for id, form in forms.items() if not form.is_plain}
    wanted_files = {file.digest for files in stored.values() for file in files}
    files_there = sizes_there(remote, condemned, wanted_files, known) if wanted_files else {}
    whole = set()
    for id in forms:
        if id in stored and all(nbytes in files_there.get(digest, ()) for digest, nbytes in stored[id]):
            whole.add(id)
        else:
            lacking.add(id)
    if whole:
        needed = {digest for info in infos if info.id in lacking for digest, _ in blobs[info.id]}
        missing = {digest: nbytes for digest, nbytes in missing.items() if digest in needed}
    new = tuple(info for info in infos if place_of(info) not in there)
    plan = TransferPlan("push", remote.name, tuple(infos), new, tuple(sorted(missing.items())), sum(wanted.values()))
    nbytes = _bytes_of_each(blobs, missing)
    return RemoteState(plan, lacking, source, there, sizes, known, nbytes, has_looked=True, unreadable=unreadable)


def _bytes_of_each(blobs: Mapping[str, Iterable[BlobRecord]], missing: Mapping[str, int]) -> dict[str, int]:
    return {id: sum(missing.get(blob.digest, 0) for blob in of_one) for id, of_one in blobs.items()}


def _blobs_of_each(
    context: Context, infos: Iterable[CheckpointInfo]
) -> tuple[dict[str, tuple[BlobRecord, ...]], dict[str, CkstoreError]]:
    """Return the blobs of each checkpoint by id, and the errors of unreadable or deleted checkpoints by name."""
    blobs: dict[str, tuple[BlobRecord, ...]] = {}
    unreadable: dict[str, CkstoreError] = {}
    for info in infos:
        try:
            with open_listed(context, info) as directory:
                blobs[info.id] = directory.manifest.blobs
        except (CkstoreError, OSError) as error:
            unreadable[info.name] = failure_of(info.name, error)
    return blobs, unreadable


def place_of(info: CheckpointInfo) -> Place:
    """Return the location of a checkpoint on any remote."""
    return Place(info.run, info.step, info.id)


def _places_there(
    source: ObjectSource, context: Context, infos: Sequence[CheckpointInfo], remote: Remote, known: RemoteRecord
) -> set[Place]:
    if setting_of(context.layout, PUSH_DELTAS):  # bases are chosen among all checkpoints
        return set(source.places())
    places = {place_of(info) for info in infos}
    wanted = {key for place in places for key in (place.manifest, place.dropped)}
    found, _ = look(remote.objects, wanted, len(known.checkpoints))
    return {place for place in places if place.manifest in found and place.dropped not in found}


def sizes_there(
    remote: Remote, condemned: CondemnedNames, digests: Iterable[str], known: RemoteRecord
) -> dict[str, Collection[int]]:
    """Return the sizes of the objects of each blob that a remote has. Versions known to be damaged are left out."""
    by_key = {keys.blob(str(condemned.name(digest))): digest for digest in digests}
    found, known.blob_count = look(remote.objects, by_key, known.blob_count)
    of_blobs = {by_key[key]: listed for key, listed in found.items()}
    return {digest: {listed.nbytes} for digest, listed in of_blobs.items() if not known.is_damaged(digest, listed)}
