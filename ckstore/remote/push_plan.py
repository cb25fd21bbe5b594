"""What a push would send: what a remote has, found by listing it. Nothing is encoded, and nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ckstore.model.reports.transfer import TransferPlan
from ckstore.ops.refs.find import open_directory
from ckstore.remote import keys
from ckstore.remote.documents.info import check_hash, read_info
from ckstore.remote.keys import Place
from ckstore.remote.source import ObjectSource

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.model.manifest.manifest import BlobRecord
    from ckstore.ops.context import Context
    from ckstore.remote.objects import Remote


def plan_push(context: Context, infos: Sequence[CheckpointInfo], remote: Remote) -> TransferPlan:
    """Say what a push would send now."""
    return look_there(context, infos, remote).plan


class There(NamedTuple):
    """What a remote has, as a push finds it.

    Attributes:
        plan: What is to be sent, before anything is encoded.
        lacking: Ids of the checkpoints that it lacks, or of which something is missing.
        source: For reading what it has.
        places: Its checkpoints.
        sizes: The sizes that it lists for the names of each digest that the plan needs.
    """

    plan: TransferPlan
    lacking: set[str]
    source: ObjectSource
    places: set[Place]
    sizes: dict[str, set[int]]

    @classmethod
    def nothing(cls, remote: Remote) -> There:
        """Return what is there for a push that sends what it is given, whatever is there."""
        plan = TransferPlan("push", remote.name, (), (), (), 0)
        return cls(plan, set(), ObjectSource(remote.objects, remote.name), set(), {})


def look_there(context: Context, infos: Sequence[CheckpointInfo], remote: Remote) -> There:
    """Find what a remote has of checkpoints."""
    check_hash(read_info(remote.objects, remote.name), context.settings, remote.name)
    source = ObjectSource(remote.objects, remote.name)
    there = set(source.places())
    wanted: dict[str, int] = {}
    for info in infos:
        wanted.update(_blobs_of(context, info))
    sizes = _sizes_there(remote, wanted)
    missing = {digest: nbytes for digest, nbytes in wanted.items() if nbytes not in sizes.get(digest, ())}
    lacking = {info.id for info in infos if place_of(info) not in there}
    # Those that are there have it under another name, in encoded form, or lack it.
    encoded = [info for info in infos if missing and info.id not in lacking]
    encoded = [info for info in encoded if any(digest in missing for digest, _ in _blobs_of(context, info))]
    forms = {info.id: source.encoding(place_of(info)) for info in encoded}
    files_there = _sizes_there(remote, {file.digest for form in forms.values() if form for file in form.files})
    whole = set()
    for id, form in forms.items():
        if form is not None and all(nbytes in files_there.get(digest, ()) for digest, nbytes in form.files):
            whole.add(id)
        else:
            lacking.add(id)
    if whole:
        needed = {digest for info in infos if info.id in lacking for digest, _ in _blobs_of(context, info)}
        missing = {digest: nbytes for digest, nbytes in missing.items() if digest in needed}
    new = tuple(info for info in infos if place_of(info) not in there)
    plan = TransferPlan("push", remote.name, tuple(infos), new, tuple(sorted(missing.items())), sum(wanted.values()))
    return There(plan, lacking, source, there, sizes)


def _blobs_of(context: Context, info: CheckpointInfo) -> tuple[BlobRecord, ...]:
    with open_directory(context, info) as directory:
        return directory.manifest.blobs


def place_of(info: CheckpointInfo) -> Place:
    """Return where a checkpoint lies at any remote."""
    return Place(info.run, info.step, info.id)


def _sizes_there(remote: Remote, digests: Container[str]) -> dict[str, set[int]]:
    """Return the sizes that a remote lists for the names of these digests; what else it lists is not kept."""
    sizes: dict[str, set[int]] = {}
    for listed in remote.objects.list(keys.BLOBS):
        if (name := keys.blob_in(listed.key)) is not None and name.digest in digests:
            sizes.setdefault(name.digest, set()).add(listed.nbytes)
    return sizes
