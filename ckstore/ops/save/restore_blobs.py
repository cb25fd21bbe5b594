"""Restore the local blobs of a checkpoint whose data is on a remote."""

from __future__ import annotations

from contextlib import suppress

from ckstore.fs import dirfd_stat, files, links
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest
from ckstore.objects.checkpoints import end_restore
from ckstore.objects.layout import BLOBS
from ckstore.objects.staging import Staging
from ckstore.ops.context import Context
from ckstore.ops.refs.protection import held


def restore_blobs(context: Context, info: CheckpointInfo, manifest: Manifest, staging: Staging) -> bool:
    """Link the staged blobs into a checkpoint, which remains listed and readable meanwhile.

    The caller updates the catalog.

    Returns:
        Whether all blobs of the checkpoint are local now.
    """
    with held(context, info) as lock:
        own = lock.inside / BLOBS
        links.make_directory(own)
        for blob in manifest.blobs:
            staged = staging.path_of(blob.digest)
            if not dirfd_stat.exists(staged):
                continue
            with suppress(FileExistsError):  # the checkpoint already has the blob
                if not links.try_link(staged, own / blob.digest):  # the file has the maximum number of links: copy it
                    data = files.read_file(staged, most_bytes=dirfd_stat.status(staged).st_size, is_blob=True)
                    files.create_blob(own / blob.digest, memoryview(data))
        # Sync the blobs before elsewhere.json is removed, so that after a power cut the checkpoint has the blobs or the
        # record of the remote that has them.
        files.sync_directory(own)
        return end_restore(lock, manifest)
