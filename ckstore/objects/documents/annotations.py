"""Read and extend the file ``annotations.json`` of a checkpoint. Source: docs/format/v1.md, "annotations.json"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.fs import files
from ckstore.objects.documents import atomic_file
from ckstore.objects.layout import ANNOTATIONS

if TYPE_CHECKING:
    from ckstore.fs.dirfd_stat import StorePath
    from ckstore.fs.locks import DirectoryLock
    from ckstore.model.checkpoint.annotations import Annotations
    from ckstore.objects.layout import Layout

# The maximum size of the file (docs/format/v1.md, "Limits").
ANNOTATIONS_MAX_BYTES = 16 * 2**20


def read_annotations(directory: StorePath) -> Annotations | None:
    """Return the annotations of the checkpoint in `directory`, or None if it has none."""
    path = directory / ANNOTATIONS
    try:
        data = files.read_file(path, most_bytes=ANNOTATIONS_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    from ckstore.model.checkpoint.annotations import parse_annotations
    from ckstore.model.seal import read

    return read(data, parse_annotations, str(path))


def add_annotations(layout: Layout, lock: DirectoryLock, more: Annotations) -> Annotations:
    """Add annotations to a locked checkpoint durably and atomically. Return all its annotations."""
    from ckstore.model.checkpoint.annotations import parse_annotations
    from ckstore.model.seal import to_write

    where = str(lock.inside / ANNOTATIONS)
    with atomic_file.changing(layout) as changing:
        # Read the annotations under the lock, so that those of another process are not lost.
        present = read_annotations(lock.inside)
        together = more if present is None else present.with_more(more)
        data = to_write(together, parse_annotations, most_bytes=ANNOTATIONS_MAX_BYTES, where=where)
        atomic_file.replace_file(layout, changing, lock.fd, ANNOTATIONS, data)
    return together
