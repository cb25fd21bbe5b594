"""Write the outcome of an attempt as a document, and turn it into the result or error of each rank."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ckstore.errors import CkstoreError, DamagedBlob, MissingRanks, RankFailed, RankMismatch
from ckstore.fs import dirfd_stat, statx
from ckstore.model.digest import short_id
from ckstore.model.manifest.info import CheckpointInfo, Published
from ckstore.model.manifest.info_message import info_json
from ckstore.model.manifest.manifest import Manifest
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory, published_of_step
from ckstore.objects.layout import Layout
from ckstore.objects.publish import hidden_at
from ckstore.ranks.file_rendezvous import FileRendezvous, mismatched_ranks
from ckstore.ranks.meeting import failed_on_all
from ckstore.ranks.rank_identity import Document, RankIdentity, named


def published(info: CheckpointInfo) -> Document:
    """Return the outcome of an attempt that published `info`.

    The outcome contains `info`, because the step may have another checkpoint when a rank reads the outcome.
    """
    return {"published": info.id, "info": info_json(replace(info, counters=None))}


def given_up(layout: Layout, meeting: FileRendezvous) -> Document:
    """Return the outcome of an attempt whose deadline passed before all parts were staged."""
    others = mismatched_ranks(layout, meeting.who)
    if others:
        return {"mismatch": f"the ranks disagree about the checkpoint: {'; '.join(others)}"}
    behind, became = meeting.behind("part"), meeting.became()
    said = [text.replace("is not done", became.get(rank, "is not done")) for rank, text in sorted(behind.items())]
    return {"missing": sorted(behind), "said": "; ".join(said)}


def stuck(meeting: FileRendezvous, publishing: Mapping[int, Document]) -> Document:
    """Return the outcome of an attempt in which a publishing rank makes no progress.

    `publishing` are the documents of the ranks that announced that they would publish.
    """
    became = meeting.became()
    said = [
        f"{named(rank, document)} {became.get(rank, 'is still publishing')}"
        for rank, document in sorted(meeting.known().items())
        if rank in became or rank in publishing
    ]
    return {"stuck": "; ".join(said) or "another rank is still publishing long after the deadline"}


def lost(layout: Layout, meeting: FileRendezvous) -> Document | None:
    """Return the outcome of an attempt whose checkpoint may have been published and then deleted, or None if not."""
    # A rank that died after its rename has reported nothing, and another attempt may have replaced its checkpoint. To
    # publish again would replace the newer checkpoint by the older one.
    if not all(dirfd_stat.is_directory(layout.staging / part["staging"]) for part in meeting.hear("part").values()):
        return None  # the merge then fails, and its error names the missing part
    said = [
        f"{named(rank, document)} stopped while it published, and its checkpoint was since deleted or replaced"
        for rank, document in sorted(meeting.hear("publishing").items())
        if not _is_unpublished(layout, meeting.who, document["staging"])
    ]
    return {"lost": "; ".join(said)} if said else None


def _is_unpublished(layout: Layout, who: RankIdentity, staging: str) -> bool:
    """Whether the merged checkpoint of this attempt is still in a staging directory, complete or not."""
    try:
        with CheckpointDirectory.at(layout.staging / staging, layout.hash_prefix):
            return True
    except DamagedBlob:  # the directory is not sealed
        return True
    except (FileNotFoundError, NotADirectoryError):  # it was published or swept, which cannot be distinguished
        # A rank on another host may be publishing the checkpoint, under its hidden name.
        return not layout.view.sees_locks and _find_hidden(layout, who, take=False)


def take_hidden(layout: Layout, who: RankIdentity) -> None:
    """Move the checkpoint of a stuck rank to trash, if it has the hidden name that is used on shared filesystems."""
    _find_hidden(layout, who, take=True)


def _find_hidden(layout: Layout, who: RankIdentity, *, take: bool) -> bool:
    """Return whether a rank of this attempt has the hidden name of the step. With `take`, move it to trash."""
    path = hidden_at(layout, who.run, who.step)
    statx.refresh(path.parent)  # according to the cache of this host, the name may not exist
    with (
        suppress(FileNotFoundError, NotADirectoryError, DamagedBlob),
        CheckpointDirectory.at(path, layout.hash_prefix) as directory,
    ):
        if not is_of_try(directory.manifest, who):
            return False
        if take:
            trash.move_to_trash(layout, path, directory.lock)
        return True
    return False


def is_of_try(manifest: Manifest, who: RankIdentity) -> bool:
    """Whether the ranks of this attempt saved the checkpoint with this manifest."""
    return manifest.ranks is not None and manifest.ranks.attempt == who.attempt


def now_at(layout: Layout, info: CheckpointInfo) -> Published | None:
    """Return the checkpoint that an attempt published, or the newest of its step if the newest has other content."""
    of_step = published_of_step(layout, info.run, info.step)
    own = next((one for one in of_step if one.manifest_id == info.id), None)
    # A rank on another host may have published the same content under another id. This does not count as a replacement.
    is_current = own is not None and own.manifest.content == of_step[-1].manifest.content
    return own if is_current else next(reversed(of_step), None)


def with_news(info: CheckpointInfo, found: Published | None) -> CheckpointInfo:
    """Return the checkpoint that an attempt published, with a warning if it was replaced or deleted afterwards."""
    # If the caller was stopped for long, a newer checkpoint may exist. The caller still gets the checkpoint of its own
    # attempt.
    if found is not None and found.manifest_id == info.id:
        return info
    now = "was deleted since" if found is None else f"was replaced since, by {short_id(found.manifest_id)}"
    return replace(info, warnings=(*info.warnings, f"{info.name} {short_id(info.id)} {now}"))


def error_of(meeting: FileRendezvous, outcome: Document) -> CkstoreError:
    """Return the error that each rank raises for an attempt that did not publish."""
    who = meeting.who
    again = "save again when all ranks run"
    if "mismatch" in outcome:
        return RankMismatch(f"{outcome['mismatch']}; {who.name} was not published")
    if "stuck" in outcome:
        return RankFailed(f"{who.name} was not published: {outcome['stuck']}", hint=again)
    if "lost" in outcome:
        return RankFailed(f"{who.name} does not exist: {outcome['lost']}", hint=again)
    if "failed" in outcome:
        failed = sorted(meeting.hear("failed").items())
        causes = {rank: CkstoreError(document["why"]) for rank, document in failed}
        error = failed_on_all(f"saving {who.name}", causes)
        if isinstance(error, RankFailed):
            # The causes no longer have their original classes, so this is taken from the documents.
            error.of_storage = all(document.get("of_storage") for _, document in failed)
        return error
    msg = f"{who.name} was not published: {outcome['said']}, of {who.world_size} ranks; {who} waited for them"
    return MissingRanks(msg, hint=f"{again}; timeout_s= sets how long to wait", missing=tuple(outcome["missing"]))
