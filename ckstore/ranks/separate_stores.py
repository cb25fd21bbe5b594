"""The interface of ranks on nodes with separate stores, which save one checkpoint to a place that all nodes reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ckstore.model.manifest.info import CheckpointInfo
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context
    from ckstore.ops.refs.find import AnyRef
    from ckstore.ops.save.save import Request
    from ckstore.ranks.merged_checkpoint import MergedCheckpoint
    from ckstore.ranks.rank_identity import Document
    from ckstore.ranks.work import RankWork


@dataclass(frozen=True, slots=True)
class JointCheckpoint:
    """A checkpoint that exists at the common place. Every rank receives this value."""

    info: CheckpointInfo
    manifest: bytes  # its manifest as stored; empty if only the merging rank's store has it, from an earlier save


class CopiedPart(Protocol):
    """The staged part of a rank, whose blobs the common place also has and protects."""

    def end(self) -> None:
        """End the protection, after the checkpoint was published or the save failed."""


class SeparateStores(Protocol):
    """Saves by ranks whose nodes have separate stores."""

    def has_place(self, context: Context, /) -> bool:
        """Whether the store of this node has a place to which its checkpoints are copied."""

    def push_staged(self, context: Context, staging: Staging, work: RankWork, /) -> tuple[CopiedPart, Document]:
        """Copy the staged part of a rank. Return it, and the document for the merging rank."""

    def publish_apart(
        self, context: Context, request: Request, whole: MergedCheckpoint, work: RankWork, sequence: int, /
    ) -> JointCheckpoint:
        """Merge the parts of all nodes; publish the checkpoint at the common place, then in the store of this node."""

    def adopt(self, context: Context, joint: JointCheckpoint, staging: Staging | None, /) -> CheckpointInfo:
        """List a checkpoint of all nodes in this node's store, with the blobs that this rank staged."""

    def list_there(self, context: Context, ref: AnyRef, /) -> None:
        """List in this store the checkpoint that a ref names at the place, if this store does not have it.

        Another node may have saved it, or this store may no longer list it.
        """
