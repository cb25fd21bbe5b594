"""What the manifests say, and which few of them have to be asked to know the newest (rule D of the design).

The catalog proposes, the directories decide. Each row has a checksum, which finds rot; the facts that an act relies on
are read from the manifest anyway, once a process, before anything is dropped, called the newest, or put in order: a row
can also be written by another program.

The names in the directories of the runs alone say which checkpoints there are. The catalog says what is in a directory,
by its name and inode number, and of those that it proposes as the newest every directory is looked at. So a run of
20,000 costs a list of names and not 20,000 looks. A manifest that another program put into an old directory of a long
run is found where that checkpoint is shown, opened or about to be dropped, by ``verify`` and ``reindex``, and by the
first opening after a start of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ckstore.errors import BadInput, CatalogUnavailable, DamagedBlob
from ckstore.fs import files
from ckstore.fs.store_path import StorePath
from ckstore.model.manifest.info import CheckpointInfo, Stamp
from ckstore.model.names import CheckpointKey
from ckstore.objects.layout import MANIFEST, OpenRuns
from ckstore.ops.context import Context, with_small_files
from ckstore.ops.index.reconcile import write_again
from ckstore.ops.manifest_cache import file_stamp

_OF_MANIFEST = (
    "id",
    "sequence",
    "created",
    "logical_bytes",
    "new_bytes",
    "reused_bytes",
    "leaf_count",
    "content",
    "parent",
    "message",
    "metrics",
    "metadata",
    "unhealthy",
    "unchanged",
)


def facts_at(context: Context, place: CheckpointKey) -> CheckpointInfo:
    """Return what the manifest of a published checkpoint says. Annotations and tags are not in it."""
    path = context.layout.checkpoint(place)
    facts = facts_in(context, path)
    if not place.fits(facts.run, facts.step, facts.id):
        raise DamagedBlob(f"{path}/{MANIFEST} says that it is {facts.name} with id {facts.id}")
    return facts if facts.key == place else replace(facts, directory=place.directory)


def facts_in(context: Context, path: StorePath) -> CheckpointInfo:
    """Return what the manifest in a directory says, wherever that is."""
    where = f"{path}/{MANIFEST}"
    with files.opened_directory(path) as fd:
        # Taken before the read: of a file that changes meanwhile the stamp must not fit the new content.
        stamp = file_stamp(fd)
        facts = context.known.manifests.recall_facts(stamp)
        if facts is None:
            from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
            from ckstore.model.manifest.parse import parse_facts  # `ckstore log` reads no manifest
            from ckstore.objects.checkpoints import plain_in

            data = files.read_file(MANIFEST, most_bytes=MANIFEST_MAX_BYTES, dir_fd=fd)
            try:
                # Not the leaves: that takes a fifth of the time for 5,000 tensors (docs/adr/0002).
                facts = parse_facts(data, where=where, hash_prefix=context.layout.hash_prefix, plain=plain_in(fd, path))
            except BadInput as error:
                raise DamagedBlob(error.message, hint=error.hint) from error
            context.known.manifests.remember_facts(stamp, facts)
    return facts


def from_manifests(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` as the manifest has it, with what was added since and with its tags; a wrong row is mended."""
    facts = facts_at(context, info.key)
    with context.layout.open_runs() as runs:
        found = as_it_is(context, runs, facts, info.tags)
    if not same_facts(found, info):
        _mend_if_wrong(context, facts)
    return found


def as_it_is(context: Context, runs: OpenRuns, info: CheckpointInfo, tags: tuple[str, ...]) -> CheckpointInfo:
    """Return `info` with its tags, and with what was added to the checkpoint since it was saved."""
    if (info.durable, info.tags) != (context.durable, tags):
        info = replace(info, durable=context.durable, tags=tags)
    return with_small_files(context, info, runs.small_files(info.key))


def _mend_if_wrong(context: Context, facts: CheckpointInfo) -> None:
    """Write the row of a checkpoint again if it says something else than the manifest, and say so."""
    place = facts.key
    try:
        rows, _, _ = context.catalog.current({place: context.layout.stamp(place)}, seek=True)
    except CatalogUnavailable:  # then no row says anything
        return
    # Only then: a reader must not take the catalog's lock for a row that is right.
    if rows and not same_facts(rows[0], facts):
        write_again(context, [place])


def same_facts(one: CheckpointInfo, other: CheckpointInfo) -> bool:
    """Whether two say the same of a manifest."""
    return all(_is_same(getattr(one, name), getattr(other, name)) for name in _OF_MANIFEST)


def _is_same(one: object, other: object) -> bool:
    """Whether two values of metadata are the same; a metric that is not a number equals itself."""
    # No text is made of them: Python refuses that for an integer of more than 4,300 digits.
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - nan


FEW = 1000  # so many checkpoints are all looked at, which takes 10 ms and finds a changed manifest in any of them
_MOST_UNKNOWN = 200  # more are looked at faster along with all others


@dataclass(frozen=True, slots=True)
class Proposed:
    """What a list of names and the catalog say together."""

    listed: Mapping[str, Mapping[str, int]]  # run -> name -> inode number of each directory there
    # Where the newest checkpoints are, and those that the catalog does not know, with what is there now.
    published: dict[CheckpointKey, Stamp | None]
    unknown: set[CheckpointKey]  # those that the catalog does not know


def newest_by_catalog(
    context: Context,
    runs: OpenRuns,  # looks into the directories
    run: str | None,  # None: all runs
    *,
    newest: int,  # how many are wanted
    listed: Mapping[str, Mapping[str, int]] | None = None,
) -> Proposed | None:
    """Return where the newest so many checkpoints of a run, or of all, can be; None: all have to be looked at."""
    # The checkpoint whose manifest was written last is among them. `listed`: run -> name -> inode number of everything
    # that is there, where that is known.
    if context.shared:  # its inode numbers may be used again unseen by this host
        return None
    layout = context.layout
    if listed is None:
        listed = {name: layout.subdirectories(name) for name in (layout.runs() if run is None else [run])}
    if sum(map(len, listed.values())) <= FEW:
        return None
    try:
        found = context.catalog.propose(listed, newest=newest, run=run)
    except CatalogUnavailable:
        return None
    # A wrong row could hide that its checkpoint is the newest.
    if found.newest.wrong_count or len(found.unknown) > _MOST_UNKNOWN:
        return None
    published = {place: runs.stamp(place) for place in (*found.newest.stamps, *found.unknown)}
    if any(published[place] != stamp for place, stamp in found.newest.stamps.items()):
        return None  # the checkpoint there may be older than others
    for place in context.known.distrusted.keys() - published.keys():  # its row may hide that it is the newest
        if place.directory in listed.get(place.run, {}):
            published[place] = runs.stamp(place)
    return Proposed(listed, published, found.unknown)
