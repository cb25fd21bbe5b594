"""Publish the merged checkpoint: link the blobs of the parts, write one manifest, and publish it like every save."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ckstore.errors import RankFailed, RankMismatch, SaveFailed
from ckstore.fs import dirfd_stat
from ckstore.fs.locks import DirectoryLock
from ckstore.model.manifest.captured import Captured
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.lineage import CountedPieces
from ckstore.model.manifest.manifest import Manifest, Node, StateTexts
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.manifest.ranks import DcpValue, RankRecord
from ckstore.model.training_identity import Parent
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.layout import BLOBS
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.save.continuation import described
from ckstore.ops.save.health import judged, lineage_of
from ckstore.ops.save.save import Request, StagedCheckpoint, draft_of, save_staged
from ckstore.ops.save.write import StorageLocations
from ckstore.ranks.part import FACTS
from ckstore.ranks.part_merger import PartMerger
from ckstore.ranks.rank_identity import Document, named
from ckstore.ranks.work import WorkWatch


@dataclass(frozen=True, slots=True)
class MergedCheckpoint:
    """The checkpoint made of the parts of all ranks."""

    parts: Mapping[int, Document]  # the documents of the ranks about their parts
    attempt: str  # the name of the attempt
    # Merges the parts, which are passed in the order of the ranks, and returns the merged state.
    state_of: Callable[[PartMerger, Sequence[Manifest]], Node]
    # The values that `torch.distributed.checkpoint` saved. None if each rank saved its own state or files.
    entries: tuple[DcpValue, ...] | None = None
    # Records the remote that has the blobs of parts in the stores of other nodes. None if all parts are in this store.
    stage_places: Callable[[DirectoryLock], None] | None = None

    def publish(
        self, context: Context, request: Request, watch: WorkWatch, say: Callable[[str], object] = len
    ) -> CheckpointInfo:
        """Merge the parts and publish them. `say` is called with the name of the directory before it is renamed."""

        def stage(staging: Staging, notes: list[str]) -> StagedCheckpoint:
            del notes
            # The name is announced before the parts are merged: ranks that give up on this rank must know the directory
            # that they have to move away.
            say(staging.path.name)
            with ExitStack() as opened:
                parts = self._link_parts(context, staging, opened)
                if self.stage_places is not None:
                    self.stage_places(staging.lock)
                return self._staged(context, staging, request, parts)

        create = partial(Staging.create, context.layout, request.run, request.step)
        return save_staged(context, request, create, stage, watch)

    def _link_parts(self, context: Context, staging: Staging, opened: ExitStack) -> list[Manifest]:
        """Link the blobs of all parts into `staging`, and return their manifests by rank."""
        parts = {
            rank: parse_manifest(said["manifest"], where=f"the part of {named(rank, said)}")[0]
            for rank, said in self.parts.items()
            if self._is_far(context, said)  # the blobs of the part are not in this store
        }
        linked: set[str] = set()
        paths = {
            rank: context.layout.staging / said["staging"]
            for rank, said in sorted(self.parts.items())
            if rank not in parts
        }
        try:
            for path in paths.values():
                # Each part remains locked until all blobs are linked. Otherwise, it could be swept when its rank ends.
                directory = opened.enter_context(CheckpointDirectory.at(path, context.layout.hash_prefix))
                part = directory.manifest
                rank = part.description.metadata["rank"]
                if rank in parts:
                    msg = f"two processes use rank {rank}"
                    raise RankMismatch(msg, hint="give each process a rank of its own")
                parts[rank] = part
                for blob in part.blobs:
                    if blob.digest not in linked:
                        staging.take(blob.digest, directory.lock.inside / BLOBS / blob.digest)
                        linked.add(blob.digest)
        except FileNotFoundError as error:
            # Some ranks have ended after staging their parts, and these parts were swept as dead.
            gone = [rank for rank, path in paths.items() if not dirfd_stat.is_directory(path)]
            if not gone:
                raise
            said = ", ".join(named(rank, self.parts[rank]) for rank in gone)
            msg = f"{said} ended or failed before all parts were joined, and its staged data was deleted"
            raise RankFailed(f"{msg}; nothing was published", hint="save again when all ranks run") from error
        return [parts[rank] for rank in sorted(parts)]

    def _is_far(self, context: Context, said: Document) -> bool:
        return self.stage_places is not None and said["store"] != context.settings.uuid

    def _staged(
        self, context: Context, staging: Staging, request: Request, parts: Sequence[Manifest]
    ) -> StagedCheckpoint:
        """Return the staged checkpoint, whose blobs are in `staging`."""
        join = PartMerger(context.settings.chunk_bytes)
        state = self.state_of(join, parts)
        join.keep_used()
        wanted = {blob.digest: blob.nbytes for blob in join.blobs}
        lacking = staging.keep_exactly(wanted)
        here = wanted.keys() - lacking
        far = [part for rank, part in enumerate(parts) if self._is_far(context, self.parts[rank])]
        lacking = sorted({*lacking} - {blob.digest for part in far for blob in part.blobs})
        if lacking:
            msg = f"{len(lacking)} blobs of the parts are missing or changed, such as {lacking[0]}"
            raise SaveFailed(f"{msg}; nothing was published", hint="did another program change the store? save again")
        captured = Captured(state, tuple(join.leaves), (), tuple(join.files[path] for path in sorted(join.files)))
        about = [part.description.metadata for part in parts]
        written = {digest for of_part in about for digest in of_part["written"]} & wanted.keys()
        logical_bytes = sum(storage.nbytes for storage in join.storages)
        new_bytes = sum(wanted[digest] for digest in written)
        stored = StorageLocations(
            blobs=tuple(join.blobs),
            storages=tuple(join.storages),
            logical_bytes=logical_bytes,
            new_bytes=new_bytes,
            reused_bytes=max(0, logical_bytes - new_bytes),
        )
        texts = StateTexts.of(captured.leaves, captured.state)
        parent = self._parent(context, request, about)
        description = described(request.about, parent)
        if FACTS in about[0]:
            description = replace(description, metadata={**about[0][FACTS], **description.metadata})
        draft = draft_of(context, captured, stored, texts, request.run, description, parent)
        found = None
        # If a rank did not count its non-finite values, for example because it has another version of ckstore, its part
        # would count as finite. In this case, the health is not recorded.
        if all(one.get("nonfinite") is not None for one in about):
            before = lineage_of(context, request.run, description.parent)
            counted = CountedPieces.of_parts([one["nonfinite"] for one in about])
            found = judged(draft, counted, before, request.step)
            draft = replace(draft, health=found.lineage.health)
        ranks = RankRecord(len(parts), self.attempt, tuple(str(one["host"]) for one in about), self.entries)
        now_ns = time.time_ns()
        return StagedCheckpoint(
            replace(draft, ranks=ranks),
            texts,
            lambda: dict.fromkeys(written & here, (now_ns, 0)),
            lambda: [warning for one in about for warning in one["warnings"]],
            True,
            judged=found,
            parent=parent,
        )

    @staticmethod
    def _parent(context: Context, request: Request, about: Sequence[Mapping[str, Any]]) -> Parent | None:
        """Return the checkpoint that the ranks continue. If one rank loads for all, only that rank knows the parent."""
        said = [Parent(*one["parent"]) for one in about if one.get("parent")]
        return request.continued(context) or next(iter(said), None)
