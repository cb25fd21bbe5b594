"""Check whether a save fits on the filesystem before it writes anything, and otherwise make room or refuse it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckstore.errors import CkstoreError, InsufficientSpace
from ckstore.fs import dirfd_stat
from ckstore.model.digest import fan_out
from ckstore.model.manifest.captured import Captured, bytes_of
from ckstore.model.settings.free_space import Amount, Need
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.free.make_room import how_to_free, make_room
from ckstore.ops.save.packing import PackNeed, find_pieces, pack_need
from ckstore.ops.save.recorded_chunks import RecordedSource

_OWN_INODES = 4  # the manifest, the directory of a new run, and two files of the catalog; staging exists already
_FOLDERS = 256  # in ``blobs/``; created when needed
# The approximate size of a tensor's entry in the manifest. A blob takes about as much, one half for its entry in the
# manifest and the other half for its name in a directory.
_SOURCE_BYTES = 256
_MARGIN_BYTES = 2**20
_NOTHING = PackNeed(0, 0)


@dataclass
class _ChunkNeed:
    """The space that the chunks of a state need; existing blobs are claimed, so that making room cannot delete them."""

    new: dict[str, int] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    packed: PackNeed = _NOTHING  # for pieces that the store lacks


def check_space(context: Context, staging: Staging, captured: Captured) -> tuple[str, ...]:
    """Compare the space that a save may need with the free space, and make room as the settings allow.

    If the whole state would fit, nothing is read. Otherwise the chunks are hashed here, in addition to the hashing of
    the save, to find and claim the blobs that the store already has.

    Returns:
        One sentence for each action that made room.
    """
    # In the usual case, one statvfs call is enough: no byte is read and no blob is claimed.
    if context.measure(_at_most(context, captured)).fits:
        return ()
    found = _look(context, staging, captured)
    new = _amount(context, found, len(captured.sources))
    if context.measure(new).fits:
        return ()
    try:
        notes = make_room(context, new, found.claimed)
        failed: CkstoreError | None = None
    except CkstoreError as error:
        notes, failed = (), error
    # Measure again: dropped blobs that a process has open are not freed yet, and other processes may have written data.
    need = context.measure(new)
    if need.fits:
        return notes
    # Refuse before the first blob is written: a save that fills the disk would make other programs fail.
    raise _refusal(context, need, notes, failed) from failed


def _at_most(context: Context, captured: Captured) -> Amount:
    chunk_bytes = context.settings.chunk_bytes
    sources, below = captured.sources, captured.pack_below_bytes(chunk_bytes)
    linked_count = sum(len(source.chunks) for source in sources if isinstance(source, RecordedSource))
    new = [source.nbytes for source in sources if not isinstance(source, RecordedSource)]
    large = [nbytes for nbytes in new if nbytes >= below]
    packed = pack_need(nbytes for nbytes in new if nbytes < below)
    blob_count = sum(-(-nbytes // chunk_bytes) for nbytes in large) + packed.pack_count
    own_bytes = _SOURCE_BYTES * (len(sources) + blob_count + linked_count) + _MARGIN_BYTES
    return Amount(sum(large) + packed.nbytes + own_bytes, blob_count + min(blob_count, _FOLDERS) + _OWN_INODES)


def _look(context: Context, staging: Staging, captured: Captured) -> _ChunkNeed:
    found = _ChunkNeed()
    small: dict[str, int] = {}
    chunk_bytes = context.settings.chunk_bytes
    below = captured.pack_below_bytes(chunk_bytes)
    for source in captured.sources:
        if isinstance(source, RecordedSource):  # making room must not delete these blobs
            found.claimed |= {chunk.blob for chunk in source.chunks if staging.claim(chunk.blob, chunk.blob_nbytes)}
            continue
        if source.nbytes < below:
            small[context.algorithm.digest(bytes_of(source, 0, source.nbytes))] = source.nbytes
            continue
        for start in range(0, source.nbytes, chunk_bytes):
            stop = min(start + chunk_bytes, source.nbytes)
            _claim(staging, found, context.algorithm.digest(bytes_of(source, start, stop)), stop - start)
    places, _ = find_pieces(context, small)
    for pack, nbytes in {(place.blob, place.blob_nbytes) for place in places.values()}:
        if staging.claim(pack, nbytes):
            found.claimed.add(pack)
    stored = {digest for digest, place in places.items() if place.blob in found.claimed}
    found.packed = pack_need(nbytes for digest, nbytes in small.items() if digest not in stored)
    return found


def _claim(staging: Staging, found: _ChunkNeed, digest: str, nbytes: int) -> None:
    if digest in found.claimed or digest in found.new:
        return
    # Claim the blob instead of only searching for it, since making room deletes checkpoints, and could then free blobs
    # that this save needs.
    if staging.claim(digest, nbytes):
        found.claimed.add(digest)
    else:
        found.new[digest] = nbytes


def _amount(context: Context, found: _ChunkNeed, source_count: int) -> Amount:
    """Return the space that the save takes on this filesystem, where each file occupies whole blocks."""
    layout = context.layout
    block = dirfd_stat.free_space(layout.path).block_bytes
    blob_count = len(found.new) + len(found.claimed)
    pack_count = found.packed.pack_count
    folders = {fan_out(digest) for digest in found.new if not dirfd_stat.is_directory(layout.blob(digest).parent)}
    # The digest of a pack determines its folder and is not known yet, so each pack may need a new folder.
    own_inodes = _OWN_INODES + len(folders) + pack_count
    own_bytes = own_inodes * block + _SOURCE_BYTES * (source_count + blob_count)
    data_bytes = sum(-(-nbytes // block) * block for nbytes in (*found.new.values(), found.packed.nbytes))
    return Amount(data_bytes + own_bytes, len(found.new) + pack_count + own_inodes)


def _refusal(context: Context, need: Need, notes: Sequence[str], failed: CkstoreError | None) -> InsufficientSpace:
    msg = f"the save needs {need} on the filesystem of {context.layout.root}. Nothing was written"
    if notes:
        msg += f"; {'; '.join(notes)}, which was not enough"
    if failed is not None:
        msg += f"; making room failed: {failed.message}"
    error = InsufficientSpace(msg, hint=how_to_free(context, need.missing))
    error.needed_bytes, error.needed_inodes = need.new.nbytes, need.new.inodes
    error.free_bytes, error.free_inodes = need.free_bytes, need.free_inodes
    return error
