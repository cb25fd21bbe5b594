"""Commit files: store them byte for byte, cut at tensor boundaries, so that equal tensors are stored once.

The other steps are those of a save: `ops/save/save` stores the bytes and publishes the checkpoint. If a file changes
during the commit, the commit fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ckstore.containers.cut import Cut, cut
from ckstore.errors import BadInput, CannotStore, StateChanged
from ckstore.fs.tree import Entry, changed
from ckstore.model.manifest.captured import Captured
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import FileRecord, LeafRecord, Node
from ckstore.model.names import join_key
from ckstore.ops.context import Context
from ckstore.ops.save.gather import check_apart, check_one_checkpoint, gather, signs_of_incompleteness, step_in_name
from ckstore.ops.save.save import Request, save_captured


@dataclass(frozen=True, slots=True)
class CommitOptions:
    """The options that a caller of `commit` may choose."""

    times: bool = False  # keep modification times
    allow_incomplete: bool = False  # accept files that are marked as unfinished


def commit(context: Context, paths: Sequence[Path], request: Request, options: CommitOptions) -> CheckpointInfo:
    """Commit files durably; see `ckstore.Store.commit`."""
    request, captured, warnings = capture_files(context, paths, request, options)
    info = save_captured(context, captured, request)
    return replace(info, warnings=(*warnings, *info.warnings))


def capture_files(
    context: Context, paths: Sequence[Path], request: Request, options: CommitOptions
) -> tuple[Request, Captured, tuple[str, ...]]:
    """Return the request with its step, the captured files, and warnings about the files."""
    is_step_given = request.step is not None
    if not is_step_given:
        request = replace(request, step=step_in_name(paths))
    request.check()
    context.check_writable()
    try:
        entries = gather(paths)
        check_apart(entries, paths, context.layout.path)
        # A caller that passes a step wants one checkpoint of all files.
        if not is_step_given:
            check_one_checkpoint(paths, entries)
        # This check precedes the check for an empty directory, so that an empty tmp-checkpoint-5 is reported as an
        # unfinished save.
        signs = signs_of_incompleteness(entries, [path.name for path in paths])
        if signs and not options.allow_incomplete:
            more = f" (and {len(signs) - 1} more)" if len(signs) > 1 else ""
            msg = f"this checkpoint is not complete: {signs[0]}{more}. Nothing was committed"
            raise BadInput(msg, hint="wait until its writer has finished, or pass allow_incomplete=True")
        if not entries:
            msg = f"{paths[0]} is empty, so there is nothing to commit"
            raise BadInput(msg, hint="give the directory that contains the files of the checkpoint")
        captured, warnings = _capture(entries, paths, options)
    except OSError as error:
        msg = f"{error.filename or 'a file'} cannot be read: {error.strerror or error}. Nothing was published"
        raise BadInput(msg) from error
    return request, captured, warnings


@dataclass(frozen=True)
class _CapturedFiles(Captured):
    """Captured files, which are checked for changes before the checkpoint is published."""

    entries: tuple[Entry, ...] = ()
    paths: tuple[Path, ...] = ()

    def first_changed(self) -> str | None:
        """Return None if no file has changed, and raise `StateChanged` otherwise."""
        try:
            # If a file was added or renamed during the commit, the checkpoint would mix two versions of the directory,
            # which no digest would detect.
            now = gather(self.paths)
        except (BadInput, OSError) as error:
            msg = f"the files were changed while they were being read: {error}. Nothing was published"
            raise StateChanged(msg, hint="commit again") from error
        before = {entry.path: entry for entry in self.entries}
        for entry in now:
            # `Entry` includes the inode, the size, mtime and ctime. A rewrite of equal length changes ctime even if the
            # writer restores mtime.
            if before.pop(entry.path, None) != entry:
                raise changed(entry.path)
        if before:
            raise changed(min(before))
        return None


class _Segment:
    """A part of a file that becomes one storage; its bytes are not in memory."""

    __slots__ = ("_entry", "_start", "name", "nbytes")
    space = None

    def __init__(self, entry: Entry, start: int, stop: int) -> None:
        self.name = entry.path
        self.nbytes = stop - start
        self._entry = entry
        self._start = start

    def view(self, start: int, stop: int) -> memoryview | None:  # noqa: ARG002 - as ByteSource has it
        """Return None, since the bytes must be read from the file."""
        return None

    def read_into(self, start: int, stop: int, out: memoryview) -> None:
        """Read the bytes of the part from `start` to `stop` into `out`."""
        self._entry.read_into(self._start + start, out[: stop - start])

    def changed(self) -> bool:
        """Return False, since `_CapturedFiles.first_changed` checks whole files."""
        return False


class _Reader:
    """The interface through which `containers.cut` reads a file."""

    def __init__(self, entry: Entry) -> None:
        self.nbytes = entry.nbytes
        self._entry = entry

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        data = bytearray(length)
        self._entry.read_into(offset, memoryview(data))
        return bytes(data)


def _capture(
    entries: Sequence[Entry], paths: Sequence[Path], options: CommitOptions
) -> tuple[_CapturedFiles, tuple[str, ...]]:
    segments: list[_Segment] = []
    leaves: list[LeafRecord] = []
    records: list[FileRecord] = []
    state: list[Node] = []
    warnings: list[str] = []
    for entry in entries:
        mtime_ns = entry.mtime_ns if options.times and entry.kind != "symlink" else None
        if entry.kind == "symlink":
            if not entry.target or "\0" in entry.target:
                raise CannotStore(entry.path, "its target is empty")
            records.append(FileRecord(entry.path, "symlink", target=entry.target))
            continue
        if entry.kind == "directory":
            records.append(FileRecord(entry.path, "directory", entry.mode, mtime_ns=mtime_ns))
            continue
        parts = cut(_Reader(entry), entry.path)
        warnings += parts.warnings
        first = len(segments)
        segments += [_Segment(entry, start, stop) for start, stop in parts.segments]
        storages = tuple(range(first, len(segments)))
        records.append(FileRecord(entry.path, "file", entry.mode, storages, mtime_ns=mtime_ns))
        if parts.tensors:
            state.append([entry.path, _name_tensors(entry.path, parts, first, leaves)])
    captured = _CapturedFiles(
        state=["dict", state],
        leaves=tuple(leaves),
        sources=tuple(segments),
        files=tuple(records),
        entries=tuple(entries),
        paths=tuple(paths),
    )
    return captured, tuple(warnings)


def _name_tensors(path: str, parts: Cut, first: int, leaves: list[LeafRecord]) -> Node:
    """Add the tensors of a file to `leaves`; return the node of the file, a leaf if the file is a single tensor."""
    file = join_key("", path)
    members: list[Node] = []
    alone = [tensor.name for tensor in parts.tensors] == [""]
    for tensor in parts.tensors:
        members.append([tensor.name, ["leaf", len(leaves)]])
        leaves.append(
            LeafRecord(
                name=file if alone else join_key(file, tensor.name),
                kind="torch",
                dtype=tensor.dtype,
                shape=tensor.shape,
                storage=first + tensor.segment,
                offset=tensor.offset,
                strides=tensor.strides,
            )
        )
    return members[0][1] if alone else ["dict", members]
