"""Decode a plain blob from compacted checkpoints that have it in encoded form."""

from __future__ import annotations

from collections.abc import Iterable

from ckstore.errors import BadInput, DamagedBlob, InUse
from ckstore.fs import files
from ckstore.fs.dirfd_stat import AnyPath
from ckstore.model.digest import algorithm_of
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.objects.pieces import read_unless_file


def decoded(directories: Iterable[AnyPath], digest: str, nbytes: int) -> tuple[bytearray, AnyPath] | None:
    """Return the bytes of a plain blob and the directory of the first checkpoint from which it can be decoded."""
    for path in directories:
        try:
            with CheckpointDirectory.at(path) as directory:
                if directory.manifest.form.has_file(digest):
                    continue
                data = bytearray(nbytes)
                read_unless_file(directory, digest, 0, memoryview(data), "a repair")
        except (BadInput, DamagedBlob, InUse):  # another checkpoint may have the blob
            continue
        except OSError as error:
            if error.errno in files.NOT_OF_THE_FILE:
                raise
            continue
        if algorithm_of(digest).digest(data) == digest:
            return data, path
    return None
