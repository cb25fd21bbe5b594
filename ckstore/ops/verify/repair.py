"""Move damaged blobs to quarantine, and replace them with intact copies in every checkpoint that uses them.

A repair works in a staging directory of its own, and replaces each link to a damaged blob with one rename. If the
process dies, each link refers to the old or to the new copy, and the next opener moves the staging directory to trash.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ckstore.errors import DamagedBlob, InUse
from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.verify_report import Damage, Repair, Unrepaired
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.heal import put_aside
from ckstore.objects.staging import Staging
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.compact.plain_form import leftovers, plain_of, put_leftovers_away, put_plain
from ckstore.ops.context import Context, CopySource
from ckstore.ops.events import note
from ckstore.ops.free import reclaim
from ckstore.ops.verify.blob_copies import BlobRequest, Copies, Right, add_pieces, is_right, is_untouched, names_of
from ckstore.ops.verify.manifests import repair_manifest

_FRESH = ".plain-new"
_NOWHERE = "no intact copy exists"


@dataclass(slots=True)
class RepairOutcome:
    """The result of a repair."""

    repaired: list[Repair] = field(default_factory=list)
    unrepaired: list[Unrepaired] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    # The checkpoints that were skipped because another process had locked them for too long.
    held: dict[CheckpointKey, InUse] = field(default_factory=dict)

    def put_aside(self, context: Context, digest: str, names: Iterable[StorePath]) -> None:
        """Move damaged copies to quarantine."""
        made = put_aside(context.layout, digest, names)
        self.quarantined += [path.inner for path in made]


def repair(
    context: Context,
    damage: Iterable[Damage],
    sources: Sequence[Path],
    *,
    canonical: Iterable[str] = (),
    right: Container[tuple[int, int]] = (),
    asked: CopySource | None = None,
) -> RepairOutcome:
    """Repair the damage that a verification or a load found.

    Args:
        context: The store.
        damage: The damage.
        sources: Other stores and directories with copies.
        canonical: The digests of blobs whose file at the canonical name is damaged and is in no checkpoint.
        right: Device and inode number of files whose bytes match the digest in another of their names, so that only one
            name is wrong.
        asked: A source of blobs that the store and `sources` do not have.
    """
    done = RepairOutcome()
    copies = Copies(context, sources, asked)
    damage = list(damage)
    # Repair manifests first, since the blobs that a checkpoint needs are unknown without its manifest.
    for place in dict.fromkeys(found.key for found in damage if not found.blob):
        repaired, reason = repair_manifest(context, copies, place)
        if repaired is not None:
            done.repaired.append(repaired)
        elif reason:
            done.unrepaired.append(Unrepaired("", 0, reason))
    wanted = _wanted(context, damage, done.held)
    for digest in canonical:
        try:
            nbytes = _size_of_right(context, digest)
        except OSError as error:
            if digest not in wanted:
                done.unrepaired.append(Unrepaired(digest, 0, describe_os_error(error)))
            continue
        if nbytes is not None:
            wanted.setdefault(digest, BlobRequest(digest, nbytes))
        elif digest not in wanted:  # no checkpoint needs the blob
            done.put_aside(context, digest, [context.layout.blob(digest)])
    if not wanted and not any(leftovers(context)):
        return done
    staging = Staging.create(context.layout, "repair", None)
    try:
        for blob in wanted.values():
            try:
                _repair_blob(context, staging, copies, blob, done, right_inodes=right)
            except OSError as error:
                done.unrepaired.append(Unrepaired(blob.digest, blob.nbytes, describe_os_error(error)))
        put_leftovers_away(context, staging)
    finally:
        reclaim.discard(context, staging)
    return done


def could_heal(context: Context, damage: Iterable[Damage]) -> tuple[str, ...]:
    """Return the damaged blobs that can be healed with bytes in the store. Nothing is changed."""
    # A blob that cannot be checked for lack of resources is not returned.
    copies = Copies(context, ())
    found = []
    for blob in _wanted(context, damage, {}).values():
        with suppress(OSError):
            if copies.found(blob) or _plain_form(context, copies, blob.digest, {}):
                found.append(blob.digest)
    return tuple(found)


def _wanted(context: Context, damage: Iterable[Damage], held: dict[CheckpointKey, InUse]) -> dict[str, BlobRequest]:
    """Return every damaged blob, with its size and pieces from the manifests of the checkpoints that have it.

    Checkpoints that another process has locked for too long are added to `held`.
    """
    wanted: dict[str, BlobRequest] = {}
    by_place: dict[CheckpointKey, set[str]] = {}
    for found in damage:
        if found.blob:
            by_place.setdefault(found.key, set()).add(found.blob)
    for key, digests in by_place.items():
        try:
            with CheckpointDirectory.at(context.layout.checkpoint(key)) as directory:
                for blob in directory.manifest.stored:
                    if blob.digest in digests:
                        place = (directory.manifest.run, directory.manifest.step, directory.manifest_id)
                        needed = wanted.setdefault(blob.digest, BlobRequest(blob.digest, blob.nbytes))
                        needed.places.append(place)
                        needed.keys.add(key)
                add_pieces(directory.manifest, {digest: wanted[digest] for digest in digests if digest in wanted})
        except InUse as error:
            held[key] = error
        except (FileNotFoundError, NotADirectoryError, DamagedBlob):  # the checkpoint was deleted or has no manifest
            continue
    return wanted


def _size_of_right(context: Context, digest: str) -> int | None:
    for path in names_of(context.layout, digest):
        try:
            nbytes = dirfd_stat.status(path).st_size
        except FileNotFoundError:
            continue
        if is_right(path, BlobRequest(digest, nbytes)):
            return nbytes
    return None


def _repair_blob(
    context: Context,
    staging: Staging,
    copies: Copies,
    wanted: BlobRequest,
    done: RepairOutcome,
    *,
    right_inodes: Container[tuple[int, int]],
) -> None:
    digest, canonical = wanted.digest, context.layout.blob(wanted.digest)
    right = copies.found(wanted)
    names = list(names_of(context.layout, digest))
    # Read every copy and not only the damaged one, because a failing disk often has several errors.
    bad = [path for path in names if not is_right(path, wanted)]
    spare = [path for path in names if path not in bad and is_untouched(path, wanted)]
    # A file whose bytes match the digest in another of its names is not a damaged blob, and is not moved to quarantine.
    # The exception is a wrong canonical name without an intact copy to replace it.
    aside = []
    for path in bad:
        status = dirfd_stat.status(path)
        if (status.st_dev, status.st_ino) not in right_inodes or (path == canonical and right is None):
            aside.append(path)
    # Stage the intact copy first. If this fails, for example on a full disk, no file is moved to quarantine.
    if right is not None:
        _stage(staging, digest, right)
    # Move the damaged files to quarantine before healing, which removes their last links in checkpoints.
    done.put_aside(context, digest, aside)
    if right is None:
        plain = _plain_form(context, copies, digest, done.held, wanted.places)
        if plain is None:
            said = "; ".join(filter(None, (_NOWHERE, copies.problems.get(digest, ""))))
            done.unrepaired.append(Unrepaired(digest, wanted.nbytes, said))
            return
        blob, right = plain
        _stage(staging, blob.digest, right)
        given = put_plain(context, digest, blob, staging.path_of(blob.digest), staging.path / _FRESH)
        # Also give the plain blob its canonical name in `blobs/`, so that saves can reuse it and gc finds it.
        done.held |= given.held | staging.heal(blob.digest).held
        done.repaired.append(Repair(blob.digest, blob.nbytes, right.source, given.checkpoint_count))
        note(context, "healed", nbytes=blob.nbytes, why=f"{digest} by {blob.digest} from {right.source}")
        return
    # Keep the links to intact copies, which need no replacement.
    given = staging.heal(digest, spare={dirfd_stat.status(path).st_ino for path in spare}, lacking=wanted.keys)
    done.held |= given.held
    done.repaired.append(Repair(digest, wanted.nbytes, right.source, given.checkpoint_count))
    note(context, "healed", nbytes=wanted.nbytes, why=f"{digest} from {right.source}")


def _plain_form(
    context: Context,
    copies: Copies,
    digest: str,
    held: dict[CheckpointKey, InUse],
    places: Iterable[tuple[str, int, str]] = (),
) -> tuple[BlobRecord, Right] | None:
    """Return the plain blob that an encoded file decodes to, with the right bytes of this blob, or None."""
    found = plain_of(context, digest, held)
    if found is None:
        return None
    blob, manifest = found
    wanted = BlobRequest(*blob, places=[*places])
    add_pieces(manifest, {blob.digest: wanted})
    right = copies.found(wanted)
    return None if right is None else (blob, right)


def _stage(staging: Staging, digest: str, right: Right) -> None:
    if right.path is not None:
        staging.take(digest, right.path)
    elif right.data is not None:
        staging.write(digest, memoryview(right.data))
