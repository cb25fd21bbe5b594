"""Determine the disk usage of checkpoints (`du`).

The links in the directories show which data is shared; no data is read. `ckstore.ops.report.pack_uses` determines how
much of a pack is used.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.usage import CheckpointUsage, RunUsage, Usage, parts_of, sizes_of
from ckstore.objects.encoded import compacted_bytes
from ckstore.objects.last_links import blobs_in
from ckstore.objects.layout import BLOBS
from ckstore.objects.trash import names_in, waiting_blobs, waiting_folders
from ckstore.ops.context import Context
from ckstore.ops.download_cache import cached_bytes
from ckstore.ops.refs.listing import infos
from ckstore.ops.report.pack_uses import PackUses

_Inode = tuple[int, int]


@dataclass(slots=True)
class _File:
    """One inode of a blob: its size, its link count, and its links in the store."""

    nbytes: int
    link_count: int
    uid: int
    holders: set[CheckpointKey] = field(default_factory=set)
    names_found: int = 0
    waits: bool = False

    @property
    def is_last(self) -> bool:
        """Whether only the holders and the canonical name link to the file, so that dropping all holders frees it."""
        # A link that was not found is in trash, in a staging directory, or outside the store.
        return self.names_found >= self.link_count


def usage(context: Context) -> Usage:
    """Return the space that the checkpoints take; see `ckstore.Store.du`."""
    return usage_of(context, infos(context, superseded=True))


def usage_of(context: Context, listed: list[CheckpointInfo]) -> Usage:
    """Return the space that the checkpoints take, like `usage`.

    `listed` must be a current list of all checkpoints of the store, including superseded ones.
    """
    files = _files(context, {info.key.any_generation: info.key for info in listed})
    packs = PackUses(context, listed)
    packed = packs.packed_bytes(lambda key: key)
    sums = _Sums()
    for file in files:
        sums.add(file)
    checkpoints = tuple(
        CheckpointUsage(
            run=info.run,
            step=info.step,
            logical_bytes=info.logical_bytes,
            alone_bytes=sums.alone[info.key],
            shared_bytes=sums.of_several[info.key],
            dead_bytes=packs.dead_bytes(info.key),
            packed_bytes=packed.get(info.key, 0),
            id=info.id,
            superseded=info.superseded,
        )
        for info in listed
    )
    saved_bytes, encoded_bytes = compacted_bytes(context.layout, [info.key for info in listed if info.compacted])
    by_user: Counter[int] = Counter()
    for file in files:
        by_user[file.uid] += file.nbytes
    alone_bytes, shared_bytes = sum(sums.alone.values()), sum(sums.of_several.values())
    unused_bytes = sum(file.nbytes for file in files if not file.holders and not file.waits)
    waiting_bytes = sum(file.nbytes for file in files if not file.holders and file.waits)
    return Usage(
        runs=_by_run(checkpoints, sums, packs.packed_bytes(lambda key: key.run)),
        checkpoints=checkpoints,
        **sizes_of(listed),
        disk_bytes=alone_bytes + shared_bytes + unused_bytes + waiting_bytes,
        alone_bytes=alone_bytes,
        shared_bytes=shared_bytes,
        unused_bytes=unused_bytes,
        waiting_bytes=waiting_bytes,
        dead_bytes=packs.total_dead_bytes(),
        saved_bytes=saved_bytes,
        encoded_bytes=encoded_bytes,
        cached_bytes=cached_bytes(context.layout),
        bytes_by_user=dict(by_user),
    )


@dataclass(slots=True)
class _Sums:
    """For each checkpoint and each run, the bytes that only it uses, and its share of blobs with several users."""

    alone: dict[CheckpointKey, int] = field(default_factory=lambda: defaultdict(int))
    of_several: dict[CheckpointKey, int] = field(default_factory=lambda: defaultdict(int))
    run_alone: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    run_shared: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, file: _File) -> None:
        holders = sorted(file.holders)
        runs = {key.run for key in holders}
        into = self.alone if file.is_last and len(holders) == 1 else self.of_several
        run_into = self.run_alone if file.is_last and len(runs) == 1 else self.run_shared
        for key, part in zip(holders, parts_of(file.nbytes, len(holders)) if holders else (), strict=True):
            into[key] += part
            run_into[key.run] += part


def _by_run(checkpoints: Sequence[CheckpointUsage], sums: _Sums, packed: Mapping[str, int]) -> tuple[RunUsage, ...]:
    by_run: dict[str, list[CheckpointUsage]] = defaultdict(list)
    for one in checkpoints:
        by_run[one.run].append(one)
    found = [
        RunUsage(
            run=run,
            checkpoint_count=len(own),
            logical_bytes=sum(one.logical_bytes for one in own),
            alone_bytes=sums.run_alone[run],
            shared_bytes=sums.run_shared[run],
            checkpoints=tuple(own),
            packed_bytes=packed.get(run, 0),
        )
        for run, own in by_run.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.alone_bytes, -one.shared_bytes, one.run)))


def _files(context: Context, listed: Mapping[CheckpointKey, CheckpointKey]) -> list[_File]:
    """Return every file of a blob in a published directory, in ``blobs/``, or in a dropped checkpoint.

    `listed` maps the key of a checkpoint's first generation to the current key of the checkpoint, so that all
    generations count as one checkpoint.
    """
    found: dict[_Inode, _File] = {}

    def note(status: os.stat_result) -> _File:
        file = found.setdefault((status.st_dev, status.st_ino), _File(status.st_size, status.st_nlink, status.st_uid))
        file.names_found += 1
        return file

    waiting = waiting_blobs(context.layout)
    for key, _ in context.layout.published():
        for _, status in blobs_in(context.layout.checkpoint(key) / BLOBS):
            note(status).holders.add(listed.get(key.any_generation, key))
    for name in names_in(context.layout.blobs):
        for digest, status in blobs_in(context.layout.blobs / name):
            note(status).waits = digest in waiting
    for folder in waiting_folders(context.layout):
        for _, status in blobs_in(folder):
            # Add only files that have no other link in the store, since all other files are already in `found`.
            found.setdefault(
                (status.st_dev, status.st_ino), _File(status.st_size, status.st_nlink, status.st_uid, waits=True)
            )
    return list(found.values())
