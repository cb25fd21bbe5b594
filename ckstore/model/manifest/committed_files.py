"""Summarize committed files, and compare the files of two checkpoints without reading their data.

Two files are equal if they have the same kind, mode, target, recorded modification time and pieces. Equal bytes give
equal pieces, because the content of a file determines where the file is cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.manifest.manifest import FileRecord, Manifest
from ckstore.model.sizes import size_text
from ckstore.model.words import printable

FileChangeKind = Literal["added", "removed", "changed"]
_LINKS_MOST = 41  # one more than the number of links that Linux follows


@brief()
@dataclass(frozen=True, slots=True)
class FileSummary:
    """One committed file, directory or symlink.

    Attributes:
        path: Relative path of the checked-out file.
        kind: ``file``, ``directory`` or ``symlink``.
        mode: Permission bits (0 for a symlink).
        nbytes: Size of a file (0 for the other kinds).
        target: Target of a symlink (empty for the other kinds).
    """

    path: str
    kind: str
    mode: int
    nbytes: int
    target: str = ""

    def __str__(self) -> str:
        more = {"file": f", {size_text(self.nbytes)}", "symlink": f" to {self.target}"}.get(self.kind, "")
        return printable(f"{self.path}: {self.kind}{more}")


@brief()
@dataclass(frozen=True, slots=True)
class FileChange:
    """A committed file that only one of two checkpoints has, or that differs between them.

    Attributes:
        kind: ``added`` (only in the second checkpoint), ``removed`` (only in the first) or ``changed``.
        before, after: The file in the first and in the second checkpoint, or None if that checkpoint lacks it.
        changed_bytes: Number of bytes of a changed file in pieces that the file of the first checkpoint does not have.
            0 if only the mode, the target of a symlink or the recorded time differs.
    """

    kind: FileChangeKind
    before: FileSummary | None
    after: FileSummary | None
    changed_bytes: int = 0

    @property
    def path(self) -> str:
        """Relative path of the file."""
        one = self.before if self.after is None else self.after
        return "" if one is None else one.path

    def __str__(self) -> str:
        one = self.after or self.before
        size = f", {size_text(one.nbytes)}" if one is not None and one.kind == "file" else ""
        changed = f", {size_text(self.changed_bytes)} changed" if self.kind == "changed" else ""
        return printable(f"{self.path}: {file_type(self.before, self.after)}{size}{changed}")


def file_type(before: FileSummary | None, after: FileSummary | None) -> str:
    """Return ``file``, ``directory`` or ``symlink``, or both kinds and modes if they differ."""
    if before is None or after is None or (before.kind, before.mode) == (after.kind, after.mode):
        one = before or after
        return one.kind if one else ""
    return f"{before.kind} {before.mode:o} -> {after.kind} {after.mode:o}"


def summaries(manifest: Manifest) -> list[FileSummary]:
    """Return the files of a checkpoint, in the order of the manifest."""
    return [_summary(manifest, file) for file in manifest.files]


def followed(files: Mapping[str, FileRecord | FileSummary], path: str) -> str | None:
    """Return the path after following its symlinks like the kernel, whether or not the resulting path exists.

    Return None if the path leads out of the checkpoint or has a loop.
    """
    to_do, done = path.split("/")[::-1], list[str]()
    links_left = _LINKS_MOST
    while to_do:
        if done and not is_directory(files, "/".join(done)):
            return "/".join((*done, *reversed(to_do)))  # the rest of the path does not exist
        name = to_do.pop()
        if name == "..":
            if not done:
                return None
            done.pop()
        elif name not in ("", "."):
            entry = files.get("/".join((*done, name)))
            if entry is None or entry.kind != "symlink":
                done.append(name)
                continue
            target = entry.target
            links_left -= 1
            if not links_left or target.startswith("/"):
                return None
            to_do += target.split("/")[::-1]
    return "/".join(done)


def is_directory(files: Mapping[str, FileRecord | FileSummary], path: str) -> bool:
    """Return whether `path` is a directory in a checkpoint."""
    found = files.get(path)
    return found is not None and found.kind == "directory"


def file_changes(before: Manifest, after: Manifest) -> tuple[FileChange, ...]:
    """Return the differences between the files of two checkpoints, sorted by path."""
    old = {file.path: file for file in before.files}
    new = {file.path: file for file in after.files}
    changes = []
    for path in sorted(old.keys() | new.keys()):
        one, other = old.get(path), new.get(path)
        changed_bytes = 0
        if one is not None and other is not None:
            if _key(before, one) == _key(after, other):
                continue
            more = Counter(_pieces(after, other)) - Counter(_pieces(before, one))
            changed_bytes = sum(length * count for (_, length), count in more.items())
        changes.append(
            FileChange(
                "added" if one is None else "removed" if other is None else "changed",
                None if one is None else _summary(before, one),
                None if other is None else _summary(after, other),
                changed_bytes,
            )
        )
    return tuple(changes)


def _summary(manifest: Manifest, file: FileRecord) -> FileSummary:
    nbytes = sum(manifest.storages[i].nbytes for i in file.storages)
    return FileSummary(file.path, file.kind, file.mode, nbytes, file.target)


def _key(manifest: Manifest, file: FileRecord) -> object:
    return file.kind, file.mode, file.target, file.mtime_ns, _pieces(manifest, file)


def _pieces(manifest: Manifest, file: FileRecord) -> list[tuple[str, int]]:
    """Return the digest and the length of each piece of a file, in order."""
    return [(extent.piece, extent.length) for i in file.storages for extent in manifest.storages[i].extents]
