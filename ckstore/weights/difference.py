"""Writes the differences between two versions of a model's weights.

Each changed tensor is one zstd frame in a safetensors file. The metadata of the file has the checksum of the tensor's
new bytes. The layout is that of SGLang's ``/pull_weights`` (docs/how-to/publish-weights.md).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from ckstore.codecs.byte_difference import POSITIONS_MOST_BYTES, LargeDifference, OverwriteFrame, XorFrame
from ckstore.containers.safetensors_write import INDEX_NAME, TensorToWrite, lay_out
from ckstore.errors import CkstoreError
from ckstore.fs import files
from ckstore.ops.call_threads import Workers
from ckstore.ops.read.export_cast import CastTally
from ckstore.ops.read.export_files import MARGIN_BYTES, Meter, Work, building
from ckstore.weights.model_weights import ModelWeights, Weight, WeightCut
from ckstore.weights.version_directory import VERSION_NAME, DifferenceForm, VersionRecord

if TYPE_CHECKING:
    from ckstore.tensors.dtype_cast import DtypeCast

_SHARD_BYTES = 256 * 2**20  # size of the compressed tensors in one file, which are in memory until it is written
_AHEAD = 2  # number of tensors per thread that wait for the writer


@dataclass(frozen=True, slots=True)
class _ChangedWeight:
    name: str
    frame: bytes
    checksum: str
    cast: DtypeCast | None  # the conversion of the new weight, which counts values out of range


class UnreadableBase(Exception):
    """The weights of the previous version cannot be read."""


def write_difference(
    before: ModelWeights,
    after: ModelWeights,
    path: Path,
    record: VersionRecord,
    *,
    form: DifferenceForm,
    most_bytes: float,
    threads: int,
    casts: CastTally,
) -> int:
    """Write the version `path` with the differences between the weights `before` and `after`. Return its size in bytes.

    The converted weights of the version are added to `casts`.

    Raises:
        LargeDifference: The differences would have more than `most_bytes`. Nothing was written.
        UnreadableBase: The weights `before` cannot be read. Nothing was written.
        DamagedBlob: The checkpoint of `after` is damaged.
        InsufficientSpace: The filesystem is full. Nothing was left behind.
    """
    # The form overwrite has positions of 32 bits, so a larger tensor requires the form xor.
    if any(weight.tensor.nbytes >= POSITIONS_MOST_BYTES for weight in after.weights.values()):
        form = "xor"
    with building(after.directory, path, MARGIN_BYTES) as (tree, reader):
        work = Work(after.directory, tree, reader, Meter(0, None), None)
        file_of: dict[str, str] = {}
        written_bytes = shard_bytes = file_bytes = 0
        shard: list[_ChangedWeight] = []

        def write_shard() -> None:
            nonlocal file_bytes, shard_bytes
            name = f"model-{len({*file_of.values()}) + 1:05d}.safetensors"
            tensors = [TensorToWrite(one.name, "U8", (len(one.frame),), len(one.frame)) for one in shard]
            layout = lay_out(tensors, {one.name: one.checksum for one in shard})
            placed = sorted(zip(layout.starts, shard, strict=True), key=lambda pair: pair[0])
            file_bytes += work.small(name, [layout.head, *(one.frame for _, one in placed)]).nbytes
            file_of.update((one.name, name) for one in shard)
            shard.clear()
            shard_bytes = 0

        with closing(_changed(before, after, form, most_bytes, threads)) as found:
            for one in found:
                shard.append(one)
                casts.add(one.name, one.cast)
                written_bytes += len(one.frame)
                shard_bytes += len(one.frame)
                if written_bytes > most_bytes:
                    raise LargeDifference
                if shard_bytes > _SHARD_BYTES:
                    write_shard()
        if shard:
            write_shard()
        index = {
            "metadata": {
                "version": f"{record.version:06d}",
                "base_version": f"{record.version - 1:06d}",
                "delta_encoding": form,
                "compression_format": "zstd",
                "checksum_format": "xxh3-128",
            },
            "weight_map": file_of,
        }
        file_bytes += work.small(INDEX_NAME, [json.dumps(index, indent=2).encode()]).nbytes
        file_bytes += work.small(VERSION_NAME, [replace(record, out_of_range=casts.count).rendered()]).nbytes
        tree.publish()
    return file_bytes


def _changed(
    before: ModelWeights, after: ModelWeights, form: DifferenceForm, most_bytes: float, threads: int
) -> Generator[_ChangedWeight]:
    """Yield the differences of the changed tensors in the order of their names, computed in several threads."""
    names = [name for name in sorted(after.weights) if before.weights[name].stored != after.weights[name].stored]
    workers = Workers(threads)
    begun: deque[Future[_ChangedWeight | None]] = deque()
    spare: list[memoryview] = []  # at most two buffers for each thread
    try:
        for name in names:
            weights = before.weights[name], after.weights[name]
            begun.append(workers.submit(_difference, *weights, form, most_bytes, spare))
            if len(begun) >= _AHEAD * threads and (one := workers.result(begun.popleft())) is not None:
                yield one
        while begun:
            if (one := workers.result(begun.popleft())) is not None:
                yield one
    finally:
        workers.stop()


def _base_parts(weight: Weight, cuts: Iterable[WeightCut], spare: list[memoryview]) -> Generator[memoryview]:
    """Yield the bytes of the previous version. Damage is recorded for its checkpoint, not for the newer one."""
    try:
        yield from weight.parts(cuts, weight.cast(), spare)
    except (CkstoreError, OSError) as error:
        if isinstance(error, OSError) and error.errno in files.NOT_OF_THE_FILE:
            raise  # for example, no memory is left: this says nothing about the previous version
        raise UnreadableBase(str(error)) from error


def _difference(
    before: Weight, after: Weight, form: DifferenceForm, most_bytes: float, spare: list[memoryview]
) -> _ChangedWeight | None:
    """Return the difference of one tensor, or None if its bytes are equal."""
    checksum = xxhash.xxh3_128()
    frame = XorFrame(after.tensor.nbytes) if form == "xor" else OverwriteFrame(most_bytes)
    cuts, cast = after.cuts(before), after.cast()
    changed = (cut for cut in cuts if not cut.is_unchanged)
    # Close both generators here, because the traceback of an error would keep them and their open blobs alive.
    with (
        closing(_base_parts(before, changed, spare)) as old_parts,
        closing(after.parts(cuts, cast, spare)) as new_parts,
    ):
        for cut, new in zip(cuts, new_parts, strict=True):
            # The checksum includes unchanged bytes, because engines check the whole tensor.
            checksum.update(new)
            if cut.is_unchanged:
                frame.skip(len(new))
            else:
                frame.add(cut.start * after.published_element_bytes, next(old_parts), new)
    data = frame.end()
    return None if data is None else _ChangedWeight(after.tensor.name, data, checksum.hexdigest(), cast)
