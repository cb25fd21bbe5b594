"""Stage the whole: a link to each blob of the parts, and one manifest over all of them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckstore.errors import RankMismatch, SaveFailed
from ckstore.model.manifest.captured import Captured
from ckstore.model.manifest.manifest import Entry, Manifest, Node, Ranks, StateTexts
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.layout import BLOBS
from ckstore.ops.save.save import Staged, draft_of, with_parent
from ckstore.ops.save.write import Stored
from ckstore.ranks.join import Join, state_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ckstore.fs.inside import Inside
    from ckstore.objects.staging import Staging
    from ckstore.ops.context import Context
    from ckstore.ops.save.save import Request


def link_parts(context: Context, staging: Staging, paths: Sequence[Inside], opened: ExitStack) -> list[Manifest]:
    """Link the blobs of all parts into `staging`, and return their manifests by rank.

    Raises:
        DamagedBlob: A part has no valid manifest.
        FileNotFoundError: A part, or a blob of it, is gone.
    """
    parts: dict[int, Manifest] = {}
    there: set[str] = set()
    for path in paths:
        directory = opened.enter_context(CheckpointDirectory.at(path, context.layout.hash_prefix))
        part = directory.manifest
        rank = part.description.metadata["rank"]
        if rank in parts:
            msg = f"two processes say that they are rank {rank}"
            raise RankMismatch(msg, hint="give each process a rank of its own")
        parts[rank] = part
        for blob in part.blobs:
            if blob.digest not in there:
                staging.take(blob.digest, directory.lock.inside / BLOBS / blob.digest)
                there.add(blob.digest)
    return [parts[rank] for rank in sorted(parts)]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is to be joined.

    Attributes:
        paths: Where the parts lie.
        entries: What the whole must have.
        attempt: Names the try.
    """

    paths: Sequence[Inside]
    entries: Sequence[Entry]
    attempt: str


def stage_shards_of(context: Context, staging: Staging, request: Request, given: Parts) -> Staged:
    """Join parts into `staging`."""
    with ExitStack() as opened:
        parts = link_parts(context, staging, given.paths, opened)
        join = Join(context.settings.chunk_bytes)
        for part in parts:
            join.add(part)
        there = join.names()
        missing = [entry.name for entry in given.entries if entry.name not in there]
        if missing:
            msg = f"no rank saved {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}; nothing was published"
            raise SaveFailed(msg)
        state = state_of(join, given.entries)
        hosts = tuple(str(part.description.metadata["host"]) for part in parts)
        ranks = Ranks(len(parts), given.attempt, hosts, tuple(given.entries))
        return staged_of(context, staging, request, parts, Joined(join, state, ranks))


@dataclass(frozen=True, slots=True)
class Joined:
    """What parts make together."""

    join: Join
    state: Node
    ranks: Ranks


def staged_of(
    context: Context, staging: Staging, request: Request, parts: Sequence[Manifest], joined: Joined
) -> Staged:
    """Return what is to be published, whose blobs are in `staging`."""
    join = joined.join
    used = {extent.blob for storage in join.storages for extent in storage.extents}
    if len(used) < len(join.blobs.records):  # of a file that several ranks have
        join.drop_blobs(used)
    wanted = {blob.digest: blob.nbytes for blob in join.blobs.records}
    lacking = staging.keep_exactly(wanted)
    if lacking:
        msg = f"{len(lacking)} blobs of the parts are missing or changed, such as {lacking[0]}; nothing was published"
        raise SaveFailed(msg, hint="did another program change the store? save again")
    captured = Captured(joined.state, tuple(join.leaves), (), tuple(join.files[path] for path in sorted(join.files)))
    written = {digest for part in parts for digest in part.description.metadata["written"]}
    logical_bytes = sum(storage.nbytes for storage in join.storages)
    new_bytes = sum(nbytes for digest, nbytes in wanted.items() if digest in written)
    stored = Stored(
        blobs=tuple(join.blobs.records),
        storages=tuple(join.storages),
        logical_bytes=logical_bytes,
        new_bytes=new_bytes,
        reused_bytes=max(0, logical_bytes - new_bytes),
    )
    texts = StateTexts.of(captured.leaves, captured.state)
    draft = draft_of(context, captured, stored, texts, request.run, with_parent(context, request))
    now_ns = time.time_ns()
    warnings = [warning for part in parts for warning in part.description.metadata["warnings"]]
    return Staged(
        replace(draft, ranks=joined.ranks),
        texts,
        lambda: dict.fromkeys(written & wanted.keys(), (now_ns, 0)),
        lambda: warnings,
        True,
    )
