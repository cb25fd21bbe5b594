"""What a power cut may leave on the weak filesystem of `weakfs`: checkpoints, and what may be missing in them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.weakfs import Directory, Tree
from tests.support.checkpoint_dirs import step_of_name

Path = tuple[str, ...]
PUBLISHED: Path = ("store", "checkpoints")


def checkpoints(tree: Tree) -> Iterator[tuple[Path, Directory]]:
    """Yield every directory that may be a checkpoint after a power cut, and as what."""
    published = tree.lookup(*PUBLISHED)
    if not isinstance(published, Directory):
        return
    for run in list(published.past):
        for folder in published.survivors(run):
            if not isinstance(folder, Directory):
                continue
            for step in list(folder.past):
                for node in folder.survivors(step):
                    if isinstance(node, Directory) and step_of_name(step) is not None:
                        yield (*PUBLISHED, run, step), node


def lacking(checkpoint: Directory) -> Iterator[str]:
    """Yield what may be missing in a checkpoint after a power cut."""
    for name in ("manifest.json", "blobs"):
        # A repair may replace the document of a checkpoint: then it is one or the other.
        is_document = name == "manifest.json" and checkpoint.required is not None
        if None in checkpoint.survivors(name) or not (is_document or checkpoint.is_certain(name)):
            yield f"{name} may not be there"
    blobs = checkpoint.now("blobs")
    for name in ("manifest.json", "annotations.json", "damaged.json"):
        if any(node is not None and not node.is_durable for node in checkpoint.survivors(name)):
            yield f"the bytes of {name} may not be there"
    if not isinstance(blobs, Directory):
        return
    for name in sorted(checkpoint.required or ()):
        found = blobs.survivors(name)
        if None in found:
            yield f"blobs/{name} may not be there"
        if any(node is not None and not node.is_durable for node in found):
            yield f"the bytes of blobs/{name} may not be there"


def directories(at: Directory) -> Iterator[Directory]:
    """Yield a directory and all below it, as they are now."""
    yield at
    for _, node in at.names():
        if isinstance(node, Directory):
            yield from directories(node)


def uncertain(at: Directory, where: str) -> Iterator[str]:
    """Yield what may be missing of a tree after a power cut; `where` it is."""
    for name, node in at.names():
        if not at.is_certain(name):
            yield f"{where}/{name} may vanish"
        if isinstance(node, Directory):
            yield from uncertain(node, f"{where}/{name}")
        elif not node.is_durable:
            yield f"the bytes of {where}/{name} are not durable"
