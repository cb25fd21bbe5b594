"""Restores claims of this store that a remote has lost, for example because it was emptied or restored from a backup.

Without such a claim, another store may remove the only copy of an evicted checkpoint. Source: docs/format/remote-v1.md,
"Evict".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckstore.errors import CkstoreError, RemoteError
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.objects import trash
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.remote.remote_only import holders_at
from ckstore.ops.context import Context
from ckstore.ops.refs.listing import infos
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.keys import Place
from ckstore.remote.objects import OF_ALL, Remote
from ckstore.remote.push import TransferLimits
from ckstore.remote.remote_only.remote_presence import PresenceCheck


def claim_again(context: Context, remote: Remote) -> int:
    """Restore the lost claims on checkpoints that were evicted to a remote, and return their number.

    Checkpoints that the remote no longer has are skipped.

    Raises:
        RemoteError: The remote does not answer, or a different remote is at its address.
    """
    uuid = check_takes(remote, context.settings).uuid
    own = {
        path: claim
        for path in evicted_paths(context)
        for claim in (holder.claim for holder in holders_at(path) if holder.uuid == uuid)
        if claim
    }
    if not own:
        return 0
    there = {claim.uuid for claim in claims_at(remote.objects) if claim.store == context.settings.uuid}
    lost = {path: claim for path, claim in own.items() if claim not in there}
    if not lost:
        return 0
    attest = PresenceCheck(context, remote, TransferLimits())
    wanted = [*_lacking(context, attest, lost)]
    attest.claim(wanted)
    return len(wanted)


def evicted_paths(context: Context) -> Iterator[StorePath]:
    """Yield the directories of checkpoints, listed or deleted, that may have been evicted."""
    layout = context.layout
    yield from (layout.checkpoint(info.key) for info in infos(context, superseded=True) if info.elsewhere)
    dropped = (layout.trash / name for name in trash.names_in(layout.trash))
    yield from (path for path in dropped if trash.left_s(path) > 0)  # these can still be restored


def _lacking(
    context: Context, attest: PresenceCheck, claims: dict[StorePath, str]
) -> Iterator[tuple[Place, str, Sequence[BlobRecord]]]:
    for path, claim in claims.items():
        try:
            with CheckpointDirectory.at(path, context.layout.hash_prefix) as directory:
                manifest, id = directory.manifest, directory.manifest_id
        except (CkstoreError, OSError):  # dropped meanwhile, or damaged locally, which `verify` reports
            continue
        place = Place(manifest.run, manifest.step, id)
        try:
            if attest.finds(place):
                yield place, claim, manifest.blobs
        except OF_ALL:
            raise
        except RemoteError:  # its manifest on the remote is damaged, which reads report
            continue
