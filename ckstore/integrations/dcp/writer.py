"""`CkstoreWriter`, a `StorageWriter` whose `finish` publishes one checkpoint in the store.

In the first collective of `torch.distributed.checkpoint`, each rank sends the run, the step and the settings of its
store with its plan, and the coordinator compares them before any data is staged. Each rank then stages its part in a
staging directory of its own and holds the lock on that directory. The coordinator merges the parts and publishes the
checkpoint. After the save, successful or not, each rank removes its staging at the latest when its writer is used again
or deleted.
"""

from __future__ import annotations

import math
import os
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ckstore.errors import BadInput, CkstoreError, RankMismatch, SaveFailed
from ckstore.integrations.dcp.group import rank_in
from ckstore.integrations.dcp.lineages import Continues, open_again, sent
from ckstore.integrations.dcp.replicas import differing, refuse_differing
from ckstore.interpreter import log_notes
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.ranks import DcpValue
from ckstore.model.names import check_own_run, check_step
from ckstore.objects.staging import Staging
from ckstore.ops.api_calls import api_call, check_options, of_state
from ckstore.ops.free import reclaim
from ckstore.ops.notices import warn
from ckstore.ops.save.continuation import ParentAtCall
from ckstore.ops.save.options import SaveOptions, patience_in, request_of
from ckstore.ops.save.save import failing_as_save
from ckstore.ranks.meeting import check_agreement, reason_of
from ckstore.ranks.merged_checkpoint import MergedCheckpoint
from ckstore.ranks.outcome import now_at, with_news
from ckstore.ranks.part import Content, Shard, content_of, stage_part
from ckstore.ranks.part_merger import shards_of
from ckstore.ranks.rank_identity import Document, RankIdentity
from ckstore.ranks.separate_stores import CopiedPart, JointCheckpoint
from ckstore.ranks.work import RankWork, WorkWatch
from ckstore.store import Store, context_of, separate_stores

_PART = "ckstore part"


class CkstoreWriter(StorageWriter):
    """Saves one checkpoint of `torch.distributed.checkpoint` into a store: ``dcp.save(state, storage_writer=…)``.

    A writer can be pickled, as ``async_save`` requires, and opens the store again after unpickling.

    Args:
        store: The store, or its path. It must be the same on all ranks, or the stores of all ranks must have the same
            mirror.
        step: Step number, which must be the same on all ranks.
        run: Name of the run, which must be the same on all ranks.
        options: The options of `Store.save`, such as metrics, metadata, message, tags, parent and if_exists. The
            options on the coordinator apply.

    Attributes:
        info: The published checkpoint, on the coordinator after the save, otherwise None.
        timeout_s: Seconds that this rank waits for its disk while the disk makes no progress.
        say: Called with the progress of this rank.
        keys: The empty dicts, and the keys that are not strings, of the state, as `own_keys` returns them.
        digests: The digests of values that other ranks may have under the same names, as `digests_of` returns them.
        rank: The rank in the group of the save, for versions of torch that do not pass the rank.
        if_ranks_differ: ``"error"`` or ``"warn"``, as in `ckstore.integrations.dcp.save`.
        at_call: The parent of an asynchronous save. If None, the parent is determined during the save.
    """

    def __init__(
        self, store: Store | str | os.PathLike[str], step: int, run: str = "main", **options: Unpack[SaveOptions]
    ) -> None:
        super().__init__()
        check_options(CkstoreWriter, options, SaveOptions)
        self.run = check_own_run(run)
        self.step = check_step(step)
        self.info: CheckpointInfo | None = None
        tags = options.get("tags", ())
        # Make a tuple, because an iterator cannot be pickled.
        given: SaveOptions = {"if_run_in_use": "error", **options}
        self._options: SaveOptions = {**given, "tags": (tags,) if isinstance(tags, str) else tuple(tags)}
        self._store: Store | None = store if isinstance(store, Store) else None
        self._path = store.path if isinstance(store, Store) else Path(store).resolve()
        self.timeout_s = math.inf
        self.say: Callable[[str], object] = len
        self.keys: list[list[Any]] = []
        self.digests: dict[str, str] = {}
        self.if_ranks_differ = "error"
        self.rank: int | None = None
        self._rank = 0
        self._continues: Continues | None = None
        self.at_call: ParentAtCall | None = None
        self._staging: Staging | None = None
        self._pushed: CopiedPart | None = None
        self._give_back: weakref.finalize[Any, CkstoreWriter] | None = None

    @property
    def checkpoint_id(self) -> str:
        """The name of the saved checkpoint, for the log of `torch.distributed.checkpoint`."""
        return f"{self.run}@{self.step}"

    @property
    def store(self) -> Store:
        """The store. The first access opens it if the writer was given a path or was unpickled."""
        if self._store is None:
            self._store = open_again(self._path, self._continues)
        return self._store

    def __getstate__(self) -> dict[str, Any]:
        # Pass the parents, because the process that unpickles the writer saves for the training of this process.
        continues = sent(self._store, self._path, self.run)
        if self.at_call is not None:  # torch pickles the writer in a thread, after the call has returned
            continues = self.at_call.sent(continues, self.run)
        ours = {"_store": None, "_continues": continues, "_give_back": None, "_staging": None, "_pushed": None}
        ours["at_call"] = None  # `continues` contains it
        return {**self.__dict__, **ours, "say": len}

    # ------------------------------------------------------------------ called by torch.distributed.checkpoint

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Refuse another name, because the run and the step determine the name of the checkpoint."""
        if checkpoint_id is not None and os.fspath(checkpoint_id) != self.checkpoint_id:
            msg = f"checkpoint_id={os.fspath(checkpoint_id)!r}: the writer saves {self.checkpoint_id}"
            raise BadInput(msg, hint="omit checkpoint_id; CkstoreWriter(store, step=…, run=…) names the checkpoint")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save."""
        del is_coordinator, args
        if not kwargs.get("use_collectives", True):
            msg = "with use_collectives=False the ranks cannot agree on one checkpoint"
            raise BadInput(msg, hint="omit it; store.save(state, ranks=Ranks(…)) needs no process group")
        self.close()
        self.info = None
        # torch 2.6 does not pass the rank. A writer that is used without `save` belongs to the group of all ranks.
        own = rank_in() if self.rank is None else self.rank
        self._rank = kwargs.get("rank", own)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Add the run, the step, the settings of the store and the digests of this rank to the plan."""
        return replace(plan, storage_data={**self._meant(), "digests": self.digests})

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Check that all ranks save the same checkpoint. The coordinator calls this."""
        said = [plan.storage_data for plan in plans]
        are_apart = check_agreement(one for one in said if one is not None)
        # Compare digests before any data is written. A cached plan has no digests, so `finish` compares them again.
        if self.if_ranks_differ == "error":
            refuse_differing([{} if one is None else one["digests"] for one in said])
        # A planner that caches plans sends a plan without storage data if the plan equals the previous one.
        return [
            plan if one is None else replace(plan, storage_data={**one, "digests": {}, "apart": are_apart})
            for plan, one in zip(plans, said, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stage the part of this rank."""
        are_apart = isinstance(plan.storage_data, Mapping) and bool(plan.storage_data.get("apart"))
        try:
            staging, more = _stage(self.store, self, plan, planner, are_apart=are_apart)
        except (CkstoreError, OSError):
            raise
        except Exception as error:  # other ranks may be unable to unpickle an error of a user's class
            raise SaveFailed(f"saving {self.checkpoint_id} failed: {reason_of(error)}") from error
        self.say("part")
        data = {**self._meant(), "staging": staging.path.name, "digests": self.digests, **more}
        result: Future[list[WriteResult]] = Future()
        result.set_result([WriteResult(MetadataIndex(_PART), sum(staging.written.values()), data)])
        return result

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Merge the parts of all ranks and publish the checkpoint. The coordinator calls this."""
        parts = dict(enumerate(result.storage_data for of_rank in results for result in of_rank))
        # Compare again, because with a planner that caches plans, the first comparison may belong to an earlier save.
        are_apart = check_agreement(parts.values())
        digests = [part.pop("digests") for part in parts.values()]
        if self.if_ranks_differ == "error":
            refuse_differing(digests)
        elif values := differing(digests):
            warn(values)
        if are_apart and not all("manifest" in part for part in parts.values()):
            msg = f"the ranks of {self.checkpoint_id} now use separate stores, but a planner kept its older plans"
            raise RankMismatch(f"{msg}; nothing was published", hint="use a planner without enable_plan_caching")
        paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
        entries = tuple(DcpValue(name, tuple(paths.get(name, (name,)))) for name in metadata.state_dict_metadata)
        # Use no grace period, because the other ranks wait in a collective whose deadline is near.
        work = RankWork(self._who(), self.timeout_s, grace_s=0)
        whole = MergedCheckpoint(parts, uuid.uuid4().hex, partial(shards_of, entries), entries)
        said: CheckpointInfo | JointCheckpoint
        if are_apart:
            said = work.run(lambda: _publish_apart(self.store, self, whole, work))
            self.info = self._taken(said)
        else:
            said = self.info = work.run(lambda: _publish(self.store, self, whole, WorkWatch(work)))
        metadata.storage_data = said  # DCP sends it to all ranks after the save
        self.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False, because a writer is passed explicitly and not looked up by the name of a checkpoint."""
        del checkpoint_id
        return False

    # ------------------------------------------------------------------ ours

    def close(self) -> None:
        """Remove the staging of this rank, unless it was published. A repeated call does nothing."""
        self._staging = None
        if self._give_back is not None:
            self._give_back()
            self._give_back = None
        if self._pushed is not None:
            self._pushed.end()
            self._pushed = None

    def request(self) -> Any:
        """Return the checked request that `Store.save` would make from the arguments."""
        request = request_of(context_of(self.store), self.run, self.step, self._options, None)
        request.check()
        return replace(request, at_call=self.at_call)

    def called(self) -> None:
        """Record the parent before `async_save` returns, because the process may load another checkpoint afterwards."""
        context = context_of(self.store)
        self.at_call = ParentAtCall.of(context, self.run)

    def ended(self, said: CheckpointInfo | JointCheckpoint) -> CheckpointInfo:
        """Return the published checkpoint. With separate stores, the store of this node keeps the part of this rank."""
        if isinstance(said, JointCheckpoint):
            return self.info or self._taken(said)
        # Warn if the checkpoint no longer exists, because this rank may have been stopped for a while.
        info = self.info or said
        return with_news(info, now_at(context_of(self.store).layout, info))

    def _taken(self, joined: JointCheckpoint) -> CheckpointInfo:
        return _take(self.store, joined, self._staging)

    def hold(self, staging: Staging, pushed: CopiedPart | None) -> None:
        """Keep the lock on the staging, and the claim on its copied blobs, until `close`."""
        self._staging, self._pushed = staging, pushed
        self._give_back = weakref.finalize(self, reclaim.discard, context_of(self.store), staging)

    def _who(self) -> RankIdentity:
        return RankIdentity.here(self.run, self.step, self._rank)

    def _meant(self) -> Document:
        settings = context_of(self.store).settings
        where = {
            "store": settings.uuid,
            "hash": settings.hash,
            "chunk_bytes": settings.chunk_bytes,
            "mirrored": separate_stores().has_place(context_of(self.store)),
        }
        return self._who().document(run=self.run, step=self.step, **where)


@api_call
@of_state
def _stage(
    store: Store, writer: CkstoreWriter, plan: SavePlan, planner: SavePlanner, *, are_apart: bool
) -> tuple[Staging, Document]:
    context = context_of(store)
    context.check_writable()
    who = writer._who()  # noqa: SLF001
    with failing_as_save(context, f"saving {writer.checkpoint_id} at {who}"):
        # A planner that does not flatten the state saves complete values, with all their keys and empty dicts.
        keys = writer.keys if getattr(planner, "flatten_state_dict", True) else ()
        content = _content_of(plan, planner, context.settings.chunk_bytes, keys)
        if (at_call := writer.at_call) is not None:
            content.about["parent"] = at_call.parent_now(context, writer.run)
        work = RankWork(who, writer.timeout_s)

        def stage() -> tuple[Staging, CopiedPart | None, Document]:
            staging = stage_part(context, work, content, patience_in(writer._options))  # noqa: SLF001
            if not are_apart:
                return staging, None, {}
            return staging, *separate_stores().push_staged(context, staging, work)

        # If this rank has failed in the meantime, the thread removes the staging, because no save will use it.
        staging, pushed, more = work.run(stage, lambda made: reclaim.discard(context, made[0]))
        writer.hold(staging, pushed)
        return staging, more


@api_call
@of_state
def _publish(store: Store, writer: CkstoreWriter, whole: MergedCheckpoint, watch: WorkWatch) -> CheckpointInfo:
    context = context_of(store)
    info = whole.publish(context, writer.request(), watch)
    log_notes(info.name, info.warnings, context.notices.logged)
    return info


@api_call
def _publish_apart(store: Store, writer: CkstoreWriter, whole: MergedCheckpoint, work: RankWork) -> JointCheckpoint:
    context = context_of(store)
    sequence = max(part["sequence"] for part in whole.parts.values())
    joined = separate_stores().publish_apart(context, writer.request(), whole, work, sequence)
    log_notes(joined.info.name, joined.info.warnings, context.notices.logged)
    return joined


@api_call
def _take(store: Store, joined: JointCheckpoint, staging: Staging | None) -> CheckpointInfo:
    return separate_stores().adopt(context_of(store), joined, staging)


def _content_of(plan: SavePlan, planner: SavePlanner, chunk_bytes: int, keys: Sequence[Any]) -> Content:
    """Return the content that a rank saves according to its plan. `keys` are those of `own_keys`."""
    shards = [_shard(item, planner) for item in plan.items if item.type != WriteItemType.BYTE_IO]
    look_up = getattr(planner, "lookup_object", None)
    values: dict[str, object] = {}
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO and look_up is not None:
            values[item.index.fqn] = look_up(item.index)
        elif item.type == WriteItemType.BYTE_IO:
            data: Any = planner.resolve_data(item)
            values[item.index.fqn] = torch.load(data, weights_only=True)
    return content_of(shards, values, chunk_bytes, keys)


def _shard(item: WriteItem, planner: SavePlanner) -> Shard:
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor) or item.tensor_data is None:
        raise BadInput(f"{item.index.fqn}: the planner gave {type(tensor).__name__} for a tensor")
    chunk = item.tensor_data.chunk
    if tuple(chunk.sizes) != tuple(tensor.shape):
        found = f"{list(tensor.shape)} for a shard of {list(chunk.sizes)}"
        raise BadInput(f"{item.index.fqn}: the planner gave a tensor of {found}")
    return Shard(item.index.fqn, tensor, tuple(item.tensor_data.size), tuple(chunk.offsets))
