"""The rules of the protocol. Each can be switched off alone, and its comment names the function that keeps it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tests.protocol.switches import Switches


@dataclass(frozen=True, slots=True)
class Rules(Switches):
    """The rules that the modelled code keeps: all of them, unless one is switched off.

    The letter before a function is the kind of the rule: L for locks, F for fsyncs, T for trash, K for what the kernel
    shows about the use of a blob, and C for the catalog.
    """

    lock_names_path: bool = True  # L locks._lock: after locking, the path still gives that directory
    lock_until_acknowledged: bool = True  # L ops.save: the lock on staging goes along through the rename
    sweep_locks: bool = True  # L trash.sweep_staging: only what can be locked alone is dead
    drop_locks: bool = True  # L ops.free.drop.drop: what a process reads is not dropped
    empty_locks: bool = True  # L Collector._take_apart: nor is what a process uses taken apart
    sync_blob: bool = True  # F files.create_blob: the bytes before the name that others see
    sync_staging: bool = True  # F Staging.seal: what is in a checkpoint before the checkpoint
    sync_published: bool = True  # F publish.sync_parents: the rename before the acknowledgement
    sync_existing: bool = True  # F publish.sync_parents: also the rename that another process did
    sync_new_run: bool = True  # F publish.sync_parents: the directory of a new run as well
    sync_kept: bool = True  # F retain.apply, drop.make_kept_durable: what is kept before what is dropped for it
    sync_dropped: bool = True  # F ops.free.drop.drop: the rename before any caller is told
    sync_trash: bool = True  # F Collector.empty: the rename before anything is unlinked below it
    sync_condemned: bool = True  # F Collector.mark_for_deletion: the rename of a blob before its row is forgotten
    sweep_renames: bool = True  # T trash.sweep_staging: to trash by a rename, nothing is unlinked in place
    fail_renames: bool = True  # T reclaim.discard: a failed save goes the same way
    condemn_renames: bool = True  # T Collector.mark_for_deletion: a blob, too
    enter: bool = True  # T Collector._enter_all: digests into the catalog before names are unlinked
    link_count: bool = True  # K Collector.mark_for_deletion: more than one link is in use
    link_count_again: bool = True  # K Collector._free: also after the rename
    lease: bool = True  # K holders.holding_of: open or mapped is in use
    lease_last: bool = True  # K Collector._free: for the last link wherever it is
    reconcile: bool = True  # C Catalog.reconcile: rows are made equal to the directory, not added to
    forget_unused: bool = True  # C rows.forget: only where there is still no use
    relist_lost: bool = True  # C relist.list_blobs: a catalog that is rebuilt learns of all blobs
    relist_boot: bool = True  # C relist.list_blobs: after a power cut names may be back
    heal: bool = True  # Staging.claim: a blob without its size is a miss and is replaced
    undo_waits: bool = True  # K trash.due: what can be brought back is not taken apart before its time is over
    undo_locks: bool = True  # L ops.free.undo.undo: nor while it is brought back
    undo_looks: bool = True  # K ops.free.undo.undo: what lacks a blob is not brought back
    sync_restored: bool = True  # F ops.free.undo.undo: the rename before any caller is told


NAMES = tuple(field.name for field in fields(Rules))
