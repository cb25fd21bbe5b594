"""Locate and list the files of a store. Source: docs/format/v1.md, "The store"."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from ckstore.errors import BadInput, StoreNotFound
from ckstore.fs import dirfd_stat
from ckstore.fs.dirfd_stat import OpenDir, StorePath, with_open_parents
from ckstore.model.checkpoint.tag import parse_tag
from ckstore.model.digest import fan_out
from ckstore.model.manifest.info import Stamp
from ckstore.model.names import CheckpointKey, is_run, is_tag, key_of, keys_in, parse_directory

MANIFEST = "manifest.json"
PLAIN = "plain.json"
BLOBS = "blobs"
ANNOTATIONS = "annotations.json"
MARK = "damaged.json"
ELSEWHERE = "elsewhere.json"
SMALL_FILES = (ANNOTATIONS, MARK, ELSEWHERE, PLAIN)
"""Files that may be added to the directory of a checkpoint after it was saved."""
# A sweep of hyperparameters can have thousands of runs, but a process usually may have only 1,024 open descriptors.
_RUNS_OPEN = 32
"""The maximum number of directories of runs that are open at the same time."""


def lists_holders(small_files: Collection[str]) -> bool:
    """Whether the small files of a checkpoint include the list of remotes that have its evicted blobs."""
    return ELSEWHERE in small_files


@dataclass(frozen=True)
class HostView:
    """Whether all processes that use a store are visible on this host, or only the processes of this host.

    The three properties currently have the same value. Each property is for one kind of decision.

    Attributes:
        other_hosts: The reason why other hosts may use the store. The locks, open files and catalogs of other hosts are
            not visible on this host. Empty if no other host can use the store.
        is_assumed: Whether `other_hosts` is only assumed, because the settings cannot be read. The store may be local.
    """

    other_hosts: str = ""
    is_assumed: bool = False

    @property
    def sees_locks(self) -> bool:
        """Whether the locks, leases and open files of all processes that use the store are visible."""
        return not self.other_hosts

    @property
    def sees_changes(self) -> bool:
        """Whether names, link counts and inode numbers are current. Otherwise, they may come from an old cache."""
        return not self.other_hosts

    @property
    def frees_at_once(self) -> bool:
        """Whether dropped data can be freed immediately. Otherwise, other hosts may read it during a grace period."""
        return not self.other_hosts


ALL_SEEN = HostView()
"""The view of a store that only this host uses."""


class RunStamp(NamedTuple):
    """The status that shows whether the names in the directory of a run have changed."""

    inode: int
    link_count: int
    mtime_ns: int
    ctime_ns: int


class RunChange(NamedTuple):
    """The status of a run before and after a checkpoint was added or removed."""

    before: RunStamp | None
    after: RunStamp | None


@dataclass(frozen=True)
class Layout:
    """The places of the store at `path`. docs/format/v1.md describes the purpose of each place."""

    path: Path  # the root, absolute
    view: HostView = ALL_SEEN  # the visibility of other processes that use the store
    hash_prefix: str = ""  # the prefix of all digests of the store; empty for any
    # Run or checkpoint that this user may not read -> a sentence about it.
    passed_over: dict[str, str] = field(init=False, default_factory=dict, compare=False, repr=False)
    root: StorePath = field(init=False)  # the root, as a `StorePath`
    settings: StorePath = field(init=False)
    config: StorePath = field(init=False)
    blobs: StorePath = field(init=False)
    checkpoints: StorePath = field(init=False)
    refs: StorePath = field(init=False)
    pins: StorePath = field(init=False)
    staging: StorePath = field(init=False)
    trash: StorePath = field(init=False)
    quarantine: StorePath = field(init=False)
    reserve: StorePath = field(init=False)
    locks: StorePath = field(init=False)
    remotes: StorePath = field(init=False)

    def __post_init__(self) -> None:
        root = StorePath(str(self.path))
        object.__setattr__(self, "root", root)
        for name, file in (("settings", "store.json"), ("config", "config.json")):
            object.__setattr__(self, name, root / file)
        own = "blobs", "checkpoints", "refs", "pins", "staging", "trash", "quarantine", "reserve", "locks", "remotes"
        for name in own:
            object.__setattr__(self, name, root / name)

    @property
    def downloads(self) -> StorePath:
        """The cache of downloaded bytes."""
        return self.remotes / ".cache"  # the name of a remote cannot begin with a dot

    @property
    def directories(self) -> tuple[StorePath, ...]:
        """The directories that every store has from the start."""
        extra = self.quarantine, self.reserve
        return (self.blobs, self.checkpoints, self.refs, self.staging, self.trash, self.pins, *extra)

    @property
    def linked(self) -> tuple[StorePath, ...]:
        """The directories to which a store links or renames files from ``staging/``. `fs/host/probe` tests this."""
        return self.blobs, self.checkpoints, self.trash, self.refs

    def outside(self, destination: str | os.PathLike[str]) -> Path:
        """Return the absolute path of a destination that the user gave. Raise `BadInput` if it is in the store."""
        path = Path(os.path.abspath(destination))
        if (dirfd_stat.resolved(path.parent) / path.name).is_relative_to(self.path):
            raise BadInput(f"{path} is in the store {self.root}", hint="choose a destination outside it")
        return path

    def blob(self, digest: str) -> StorePath:
        """Return the canonical name of a blob."""
        return self.blobs / fan_out(digest) / digest

    def checkpoint(self, key: CheckpointKey) -> StorePath:
        """Return the directory of a checkpoint."""
        return self.checkpoints / key.run / key.directory

    def published(self, run: str | None = None) -> Iterator[tuple[CheckpointKey, int]]:
        """Yield the key and inode number of every directory that is named like a checkpoint, unsorted.

        Directories that this user may not read are skipped.
        """
        for name in self.runs() if run is None else [run]:
            found = self.checkpoints_of(name)
            # Check the access for the whole run at once, with one descriptor and one call for each checkpoint.
            closed = self.closed(name, found)
            yield from ((key, inode) for key, inode in found.items() if key not in closed)

    def closed(self, run: str, keys: Iterable[CheckpointKey]) -> set[CheckpointKey]:
        """Record and return the checkpoints of a run that this user may not access."""
        # Root may read everything.
        if os.geteuid() == 0 or not (keys := [*keys]):
            return set()
        try:
            with OpenDir(self.checkpoints / run) as folder:
                # `access` also considers ACLs. Use the effective ids, with which files are opened.
                found = {
                    key
                    for key in keys
                    if not os.access(key.directory, os.R_OK | os.X_OK, dir_fd=folder.fd, effective_ids=True)
                    # A directory that no longer exists is not recorded.
                    and dirfd_stat.exists(key.directory, dir_fd=folder.fd)
                }
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except PermissionError:  # the run itself is not accessible, which was recorded when it was listed
            return {*keys}
        for key in found:
            self.pass_over(self.checkpoint(key))
        return found

    def pass_over(self, path: StorePath) -> str:
        """Record that this user may not access a run or a checkpoint. Return a sentence about it."""
        me = os.geteuid()
        owners = []
        for place in (path, path / MANIFEST, path / BLOBS):
            with suppress(PermissionError):
                status = dirfd_stat.find(place)
                if status is not None:
                    owners.append(status.st_uid)
        # If the directory belongs to this user, name the owner of the files in it.
        uid = next((uid for uid in owners if uid != me), me)
        owner = "root (uid 0)" if uid == 0 else f"uid {uid}"
        said = f"{path.inner} belongs to {owner}, and uid {me} may not read it"
        self.passed_over[path.inner] = said
        return said

    def places(self) -> Iterator[tuple[StorePath, StorePath]]:
        """Yield the path of every directory that is named like a checkpoint, and a path relative to its open run.

        The second path is valid until the next pair is requested.
        """
        return with_open_parents((place, place) for place in (self.checkpoint(key) for key, _ in self.published()))

    def checkpoints_of(self, run: str) -> dict[CheckpointKey, int]:
        """Return key -> inode number of every directory of a run that is named like a checkpoint, unsorted."""
        return keys_in(run, self.subdirectories(run))

    def of_step(self, run: str, step: int) -> list[CheckpointKey]:
        """Return the sorted keys of the directories that are named after a step, or nothing if the run is missing."""
        # List all names, but inspect only the few that match: this takes 3 ms for a run of 10,000 checkpoints.
        draft, begin = str(step), f"{step}."
        try:
            with dirfd_stat.entries(self.checkpoints / run) as entries:
                found = (e for e in entries if e.name.startswith(begin) or e.name == draft)
                names = [e.name for e in found if e.is_dir(follow_symlinks=False)]
        except PermissionError:
            self.pass_over(self.checkpoints / run)
            return []
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(key for name in names if (key := key_of(run, name)) is not None)

    def subdirectories(self, run: str) -> dict[str, int]:
        """Return name -> inode number of every directory of a run, regardless of its name, unsorted."""
        return {name: inode for name, inode, is_directory in self.listed(run) if is_directory}

    def directories_by_run(self, run: str | None = None) -> dict[str, dict[str, int]]:
        """Return run -> name -> inode number of every directory of `run`, or of every run if it is not given."""
        return {name: self.subdirectories(name) for name in (self.runs() if run is None else [run])}

    def is_filled(self, run: str) -> bool:
        """Whether a run has a directory that is named like a checkpoint."""
        try:
            with dirfd_stat.entries(self.checkpoints / run) as entries:
                return any(parse_directory(e.name) is not None and e.is_dir(follow_symlinks=False) for e in entries)
        except PermissionError:
            self.pass_over(self.checkpoints / run)
            return False
        except (FileNotFoundError, NotADirectoryError):
            return False

    def runs(self) -> list[str]:
        """Return the names of all runs, sorted."""
        found = dirfd_stat.listed(self.checkpoints)
        if not found:
            self.check_exists(self.checkpoints)
        return sorted(filter(is_run, [name for name, _, is_directory in found if is_directory]))

    def listed(self, run: str) -> list[tuple[str, int, bool]]:
        """Return each name in the directory of a run with its inode number and whether it is a directory."""
        try:
            found = dirfd_stat.listed(self.checkpoints / run)
        except PermissionError:
            self.pass_over(self.checkpoints / run)
            return []
        if not found:
            self.check_exists(self.checkpoints)
        return found

    def check_exists(self, part: StorePath) -> None:
        """Raise StoreNotFound if `part` of the store, ``store.json`` or a directory, does not exist."""
        # A store that was moved, deleted or unmounted must not seem empty. Otherwise, a training would start over at
        # step 1.
        if not dirfd_stat.exists(part):
            msg = f"{self.root} has no {part.name}: the store was moved, deleted or unmounted, or is an incomplete copy"
            hint = "mount it, or restore it from a backup"
            if part == self.checkpoints:
                hint += f"; if the store never had a checkpoint, create the directory {part}"
            raise StoreNotFound(msg, hint=hint)

    def open_runs(self) -> OpenRuns:
        """Return an object that inspects the directories of many checkpoints."""
        return OpenRuns(self)

    def inode(self, key: CheckpointKey) -> int | None:
        """Return the inode number of the directory of a checkpoint, or None if it is missing. Follow no symlink."""
        try:
            found = dirfd_stat.find(self.checkpoint(key))
        except PermissionError:  # this user may list the run, but not enter it
            self.pass_over(self.checkpoints / key.run)
            return None
        return found.st_ino if found is not None and stat.S_ISDIR(found.st_mode) else None

    def stamp(self, key: CheckpointKey) -> Stamp | None:
        """Return the stamp of the checkpoint in a directory. None if the directory or its manifest is missing."""
        with self.open_runs() as runs:
            return runs.stamp(key)

    def stamps(self, run: str | None = None) -> dict[CheckpointKey, Stamp | None]:
        """Return the stamp of each checkpoint that `published` yields. None if its manifest is missing."""
        with self.open_runs() as runs:
            return runs.stamps(self.directories_by_run(run))

    def subdirectory_count(self, run: str) -> int:
        """Return the number of subdirectories of a run, or 0 if the filesystem does not include it in link counts."""
        found = dirfd_stat.find(self.checkpoints / run)
        return 0 if found is None else max(0, found.st_nlink - 2)

    def run_stamp(self, run: str) -> RunStamp | None:
        """Return the stamp of a run, or None if the stamp is not available or may be outdated."""
        # If other hosts use the store, the attributes in the cache of this host may be older than their last change.
        if not self.view.sees_changes:
            return None
        try:
            found = dirfd_stat.status(self.checkpoints / run)
        except OSError:  # the caller lists the run, which raises the error
            return None
        return RunStamp(found.st_ino, found.st_nlink, found.st_mtime_ns, found.st_ctime_ns)

    def tags(self) -> dict[str, CheckpointKey]:
        """Return, for each tag, the key of the first generation of its checkpoint. Invalid tags are ignored."""
        return {
            name: found.key.any_generation
            for name, text in self.tag_texts().items()
            if is_tag(name) and text is not None and (found := parse_tag(text)) is not None
        }

    def tag_texts(self, names: Sequence[str] | None = None) -> dict[str, str | None]:
        """Return name -> target of each symlink in ``refs/``, or only of `names`. Other files have the target None."""
        try:
            return dirfd_stat.symlink_texts(self.refs, names)
        except (FileNotFoundError, NotADirectoryError):  # a copy of the store may lack empty directories
            self.check_exists(self.settings)
            return {}


class OpenRuns:
    """A context manager that inspects the directories of many checkpoints, each once, and keeps their runs open."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._open: dict[str, OpenDir | None] = {}
        self._small_files: dict[CheckpointKey, frozenset[str]] = {}

    def checkpoint(self, key: CheckpointKey) -> StorePath:
        """Return the directory of a checkpoint, below the open directory of its run.

        The result can be used until another run is inspected.
        """
        folder = self._run(key.run)
        return self._layout.checkpoint(key) if folder is None else folder.inside / key.directory

    def small_files(self, key: CheckpointKey) -> frozenset[str]:
        """Return the `SMALL_FILES` that a checkpoint has."""
        if key in self._small_files:
            return self._small_files[key]
        folder = self._run(key.run)
        found = frozenset[str]() if folder is None else folder.having(key.directory, SMALL_FILES)
        self._small_files[key] = found
        return found

    def stamp(self, key: CheckpointKey) -> Stamp | None:
        """Return the stamp of the checkpoint in a directory. None if the directory or its manifest is missing."""
        inode = self._layout.inode(key)
        return self._stamps(key.run, {} if inode is None else {key: inode}, in_full=False).get(key)

    def stamps(
        self, listed: Mapping[str, Mapping[str, int]], *, in_full: bool = False
    ) -> dict[CheckpointKey, Stamp | None]:
        """Return the stamp of each checkpoint in `Layout.directories_by_run`. None if its manifest is missing."""
        # With `in_full`, also find the files that `small_files` will return, in the same pass.
        found: dict[CheckpointKey, Stamp | None] = {}
        for run, names in listed.items():
            found |= self._stamps(run, keys_in(run, names), in_full=in_full)
        return found

    def _stamps(
        self, run: str, inodes: Mapping[CheckpointKey, int], *, in_full: bool
    ) -> dict[CheckpointKey, Stamp | None]:
        folder, names = self._run(run), [key.directory for key in inodes]
        looked = {} if folder is None else folder.look_into(names, MANIFEST, SMALL_FILES if in_full else ())
        # Record the checkpoints that this user may not read.
        self._layout.closed(run, [key for key in inodes if key.directory not in looked])
        nothing: tuple[None, frozenset[str]] = None, frozenset()
        found = {key: looked.get(key.directory, nothing) for key in inodes}
        if in_full:
            self._small_files |= {key: small_files for key, (_, small_files) in found.items()}
        return {
            key: None if manifest is None else Stamp.of(inodes[key], manifest) for key, (manifest, _) in found.items()
        }

    def _run(self, run: str) -> OpenDir | None:
        if run not in self._open:
            # Close all runs at once: runs are inspected in order, so a closed run is usually not needed again.
            if len(self._open) >= _RUNS_OPEN:
                self.close()
            try:
                self._open[run] = OpenDir(self._layout.checkpoints / run)
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                self._open[run] = None
        return self._open[run]

    def close(self) -> None:
        """Close the directories of all runs. Repeated calls do nothing."""
        while self._open:
            _, folder = self._open.popitem()
            if folder is not None:
                folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
