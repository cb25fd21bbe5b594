"""What an open checkpoint says of itself, in one call."""

from __future__ import annotations

from pathlib import Path

from ckstore import Store
from ckstore.ops.refs.find import find
from ckstore.provisional import FileSummary, LeafSummary
from ckstore.store import RefLike
from tests.support.checkpoint_dirs import dir_of_id


def leaves_of(store: Store, ref: RefLike = "latest") -> list[LeafSummary]:
    with store.open_checkpoint(ref) as checkpoint:
        return checkpoint.leaves()


def files_of(store: Store, ref: RefLike = "latest") -> list[FileSummary]:
    with store.open_checkpoint(ref) as checkpoint:
        return checkpoint.files()


def directory_of(store: Store, ref: RefLike = "latest") -> Path:
    """Also of a checkpoint that cannot be opened."""
    info = find(store._context, ref)
    return dir_of_id(store.path, info.run, info.step, info.id)
