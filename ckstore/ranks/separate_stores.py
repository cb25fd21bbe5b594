"""The interface for ranks on nodes with separate stores. They save one checkpoint to a place that all nodes reach."""

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
    # The manifest as stored. Empty if only the store of the merging rank has the checkpoint, from an earlier save.
    manifest: bytes


class CopiedPart(Protocol):
    """The staged part of a rank, whose blobs the common place also has and protects."""

    def end(self) -> None:
        """End the protection, after the checkpoint was published or the save failed."""


class SeparateStores(Protocol):
    """Saves by ranks whose nodes have separate stores."""

    def has_place(self, context: Context, /) -> bool:
        """Whether the store of this node has a place to which its checkpoints are copied."""

    def push_staged(self, context: Context, staging: Staging, work: RankWork, /) -> tuple[CopiedPart, Document]:
        """Copy the staged part of a rank. Return the copied part, and the document for the merging rank."""

    def publish_apart(
        self, context: Context, request: Request, whole: MergedCheckpoint, work: RankWork, sequence: int, /
    ) -> JointCheckpoint:
        """Merge the parts of all nodes. Publish the checkpoint at the common place, then in the store of this node."""

    def adopt(self, context: Context, joint: JointCheckpoint, staging: Staging | None, /) -> CheckpointInfo:
        """List a checkpoint of all nodes in the store of this node, with the blobs that this rank staged."""

    def list_there(self, context: Context, ref: AnyRef, /) -> None:
        """If this store lacks the checkpoint that a ref names at the common place, list the checkpoint in this store.

        Another node may have saved the checkpoint, or this store may no longer list it.
        """
