"""Read the facts in manifests, and find the few manifests that determine the newest checkpoint.

The catalog proposes, and the directories decide. Each row has a checksum, which detects damage but not a row that
another program wrote. Therefore a process reads the manifest of a checkpoint once before it drops the checkpoint,
reports it as the newest, or orders it among other checkpoints.

The names in the directories of the runs show which checkpoints exist. The catalog knows the content of a directory by
its name and inode number. Therefore a run of 20,000 checkpoints is listed, but only the directories that the catalog
proposes as the newest are inspected. If another program puts a manifest into an old directory of a long run, this is
detected when that checkpoint is shown, opened or about to be dropped. ``verify``, ``reindex`` and the first opening
after a start of the machine also detect it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import xxhash

from ckstore.errors import BadInput, CatalogUnavailable, DamagedBlob
from ckstore.fs import files
from ckstore.fs.dirfd_stat import OpenDir, StorePath
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


def facts_at(context: Context, place: CheckpointKey, path: StorePath | None = None) -> CheckpointInfo:
    """Return the facts in the manifest of a published checkpoint, without annotations and tags.

    `path` is the directory of the checkpoint. A caller that reads many checkpoints passes a path relative to the open
    directory of the run.
    """
    path = context.layout.checkpoint(place) if path is None else path
    facts = facts_in(context, path)
    if not place.fits(facts.run, facts.step, facts.id):
        raise DamagedBlob(f"{path}/{MANIFEST} names {facts.name} with id {facts.id}")
    return facts if facts.key == place else replace(facts, directory=place.directory)


def facts_in(context: Context, path: StorePath) -> CheckpointInfo:
    """Return the facts in the manifest of any directory, published or not."""
    with OpenDir(path) as directory:
        fd = directory.fd
        # Take the stamp before the read, so that it does not match the new content if the file changes in between.
        stamp = file_stamp(fd)
        facts = context.known.manifests.recall_facts(stamp)
        if facts is None:
            from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
            from ckstore.model.manifest.parse import parse_facts  # `ckstore log` reads no manifest
            from ckstore.objects.checkpoints import plain_in

            data = files.read_file(MANIFEST, most_bytes=MANIFEST_MAX_BYTES, dir_fd=fd)
            try:
                # Parse without the leaves, which saves four fifths of the time for 5,000 tensors (docs/adr/0002).
                where = f"{path}/{MANIFEST}"
                facts = parse_facts(data, where=where, hash_prefix=context.layout.hash_prefix, plain=plain_in(fd, path))
            except BadInput as error:
                raise DamagedBlob(error.message, hint=error.hint) from error
            context.known.manifests.remember_facts(stamp, facts)
    return facts


def from_manifests(context: Context, info: CheckpointInfo, runs: OpenRuns | None = None) -> CheckpointInfo:
    """Return `info` with the facts of its manifest, its annotations and its tags; repair its row if it is wrong.

    A caller that reads many checkpoints passes `runs`, so that the directory of a run is opened only once.
    """
    with context.layout.open_runs() if runs is None else nullcontext(runs) as opened:
        facts = facts_at(context, info.key, opened.checkpoint(info.key))
        found = as_it_is(context, opened, facts, info.tags)
    if not same_facts(found, info):
        _mend_if_wrong(context, facts)
    return found


def as_it_is(context: Context, runs: OpenRuns, info: CheckpointInfo, tags: tuple[str, ...]) -> CheckpointInfo:
    """Return `info` with its tags and annotations."""
    if (info.durable, info.tags) != (context.durable, tags):
        info = replace(info, durable=context.durable, tags=tags)
    return with_small_files(context, info, runs.small_files(info.key))


def _mend_if_wrong(context: Context, facts: CheckpointInfo) -> None:
    """Rewrite the row of a checkpoint if it differs from the manifest, and report it."""
    place = facts.key
    try:
        rows, _, _ = context.catalog.current({place: context.layout.stamp(place)}, seek=True)
    except CatalogUnavailable:  # without a catalog, there is no row to rewrite
        return
    # Write only a wrong row, since a reader must not lock the catalog for a correct row.
    if rows and not same_facts(rows[0], facts):
        write_again(context, [place])


def same_facts(one: CheckpointInfo, other: CheckpointInfo) -> bool:
    """Whether two infos agree in all facts that come from a manifest."""
    return all(_is_same(getattr(one, name), getattr(other, name)) for name in _OF_MANIFEST)


def row_digest(info: CheckpointInfo, blobs: Iterable[tuple[str, int]], stamp: Stamp | None) -> str:
    """Return a digest of the facts, blobs and stamp in the catalog for a checkpoint, or "" if none can be computed.

    Equal digests mean equal facts. If digests differ, the facts may still be the same (`same_facts`), since the digest
    depends on the order of dict entries.
    """
    uses = sorted({(digest, nbytes) for digest, nbytes in blobs})
    try:
        text = repr(([getattr(info, name) for name in _OF_MANIFEST], uses, stamp))
    except ValueError:  # Python refuses to convert an integer of more than 4,300 digits
        return ""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def _is_same(one: object, other: object) -> bool:
    """Whether two values of metadata are equal; NaN equals itself."""
    # The values are not compared as text, because Python refuses to convert an integer of more than 4,300 digits.
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - nan


# Up to this number, all checkpoints are inspected, which takes 10 ms and detects any changed manifest.
FEW = 1000
_MOST_UNKNOWN = 200  # if more checkpoints are unknown, inspecting all checkpoints is faster


@dataclass(frozen=True, slots=True)
class CatalogProposal:
    """The checkpoints to inspect, as proposed by the catalog from a list of names."""

    listed: Mapping[str, Mapping[str, int]]  # run -> name -> inode number of each directory
    # The checkpoints that may be the newest and those that are not in the catalog, with their current stamps.
    published: dict[CheckpointKey, Stamp | None]
    unknown: set[CheckpointKey]  # the checkpoints that are not in the catalog


def newest_by_catalog(
    context: Context,
    runs: OpenRuns,
    run: str | None,
    listed: Mapping[str, Mapping[str, int]],
    *,
    newest: int,
) -> CatalogProposal | None:
    """Return the checkpoints that may be the newest of a run or of all runs, or None if all must be inspected.

    They include the checkpoint whose manifest was written last.

    Args:
        context: The store.
        runs: Inspects the directories.
        run: The run. If None, all runs.
        listed: Run -> name -> inode number of every existing directory.
        newest: How many of the newest checkpoints are needed.
    """
    # Without `sees_changes`, inode numbers may be reused without this host noticing it.
    if sum(map(len, listed.values())) <= FEW or not context.view.sees_changes:
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
        return None  # the checkpoint at that place may be older than others
    # Also inspect the checkpoints whose rows are known to be wrong.
    for place in context.known.distrusted.keys() - published.keys():
        if place.directory in listed.get(place.run, {}):
            published[place] = runs.stamp(place)
    return CatalogProposal(listed, published, found.unknown)
