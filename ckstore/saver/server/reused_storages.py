"""Find the storages of an earlier checkpoint that an order reuses instead of sending their bytes."""

from __future__ import annotations

from collections.abc import Mapping

from ckstore.errors import DamagedBlob, SaveFailed
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.saver.messages import Order, ReusedStorage
from ckstore.objects.checkpoints import CheckpointDirectory, places_with_id
from ckstore.ops.context import Context
from ckstore.ops.save.recorded_chunks import NEXT, RecordedChunk, RecordedSource


def manifest_of(context: Context, run: str, step: int, manifest_id: str) -> Manifest:
    """Return the manifest of the checkpoint whose storages are to be reused."""
    for path in places_with_id(context.layout, run, step, manifest_id):
        try:
            with CheckpointDirectory.at(path, context.layout.hash_prefix) as directory:
                # The id is compared under the lock, because the directory may have been exchanged since
                # `places_with_id` read it.
                if directory.manifest_id == manifest_id:
                    return directory.manifest
        except (FileNotFoundError, NotADirectoryError):
            continue
        except DamagedBlob as error:
            raise _not_taken(run, step, error.message) from error
    raise _not_taken(run, step, "it was deleted")


def _not_taken(run: str, step: int, reason: str) -> SaveFailed:
    msg = f"unchanged tensors of {run}@{step} cannot be reused: {reason}. Nothing was published"
    return SaveFailed(msg, hint=NEXT)


def recorded_sources(
    manifest: Manifest, order: Order, kept: ReusedStorage, in_hand: Mapping[int, Mapping[int, memoryview]]
) -> dict[int, RecordedSource]:
    """Return the storages that an order reuses from an earlier checkpoint, by their index.

    Args:
        manifest: The manifest of the earlier checkpoint.
        order: The order.
        kept: Describes which storages are reused.
        in_hand: For each of these storages, the start of each sample in the storage -> its bytes in the snapshot.
    """
    old = {leaf.name: leaf for leaf in manifest.leaves}
    same_form = set(kept.storages)
    for leaf in order.captured.leaves:
        # Only the storage number may differ: another dtype or stride over the same bytes is another tensor.
        if leaf.storage in same_form and old.get(leaf.name) != leaf._replace(storage=kept.storages[leaf.storage][0]):
            same_form.remove(leaf.storage)
    base = manifest.name
    sources = {}
    for index, (old_index, copied_step) in kept.storages.items():
        place, samples = order.places[index], in_hand.get(index, {})
        chunks = _chunks(manifest, old_index) if index in same_form else ()
        lengths = {chunk.start: chunk.stop - chunk.start for chunk in chunks}
        same_chunks = all(lengths.get(start) == len(data) for start, data in samples.items())
        if not same_chunks or sum(lengths.values()) != place.nbytes:
            raise SaveFailed(f"{base} stores {place.name} in another form; nothing was published", hint=NEXT)
        copied_in, is_named = f"{order.run}@{copied_step}", index not in kept.unnamed
        sources[index] = RecordedSource(place.name, chunks, samples, base, copied_in, is_named=is_named)
    return sources


def _chunks(manifest: Manifest, storage: int) -> tuple[RecordedChunk, ...]:
    """Return the pieces of a storage in order, or nothing if their concatenation is not the bytes of the storage."""
    record = manifest.storages[storage]
    chunks = []
    end = 0
    # The blocks of ranks are not in the order of the bytes of the storage, so a sequence cannot represent them.
    for extent in () if record.tiling is not None else record.extents:
        blob = manifest.blobs[extent.blob]
        chunks.append(RecordedChunk(end, end + extent.length, extent.piece, blob.digest, blob.nbytes, extent.offset))
        end += extent.length
    return tuple(chunks)
