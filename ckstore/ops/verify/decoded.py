"""Right bytes of a plain blob out of compacted checkpoints, which have it encoded."""

from __future__ import annotations

from collections.abc import Iterable

from ckstore.errors import BadInput, DamagedBlob, InUse
from ckstore.fs import files
from ckstore.fs.store_path import AnyPath
from ckstore.model.digest import algorithm_of
from ckstore.objects import encoded
from ckstore.objects.checkpoints import CheckpointDirectory


def decoded(directories: Iterable[AnyPath], digest: str, nbytes: int) -> tuple[bytearray, AnyPath] | None:
    """Return the bytes of a plain blob out of the first checkpoint that has it encoded and right, and which it is."""
    for path in directories:
        try:
            with CheckpointDirectory.at(path) as directory:
                if not encoded.is_encoded(directory, digest):
                    continue
                data = bytearray(nbytes)
                encoded.decoded(directory, digest, 0, memoryview(data), "a repair")
        except (BadInput, DamagedBlob, InUse):  # another one may do
            continue
        except OSError as error:
            if error.errno in files.NOT_OF_THE_FILE:
                raise
            continue
        if algorithm_of(digest).digest(data) == digest:
            return data, path
    return None
