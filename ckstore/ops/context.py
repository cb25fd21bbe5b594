"""The state that all calls on one open store share, and the interfaces of observers and subscribers."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from ckstore.catalog import Catalog
from ckstore.errors import CkstoreError, ReadOnlyStore, SaveFailed
from ckstore.fs import dirfd_stat
from ckstore.model.digest import Algorithm, algorithm_named
from ckstore.model.lazy_property import LazyProperty
from ckstore.model.manifest.info import CheckpointInfo, Stamp
from ckstore.model.names import CheckpointKey
from ckstore.objects.documents.annotations import read_annotations
from ckstore.objects.layout import ANNOTATIONS, ELSEWHERE, MARK, PLAIN
from ckstore.ops.call_threads import DEFAULT_THREADS
from ckstore.ops.config_file import FAILED_SAVES_MOST, ON_FAILED_SAVE, THREADS, Setting, read_config, setting_of
from ckstore.ops.manifest_cache import DirectoryCache, HighWaterMark, ManifestCache
from ckstore.ops.notices import Notices, warn, way_in
from ckstore.ops.pace import DutyCycle, PhaseTimer, SaveTotals, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from ckstore.catalog.answers import PieceLocation
    from ckstore.errors import DamagedBlob, RemoteError
    from ckstore.model.manifest.info import SaveCounters
    from ckstore.model.manifest.lineage import CountedPieces, Lineage
    from ckstore.model.manifest.manifest import BlobRecord, Manifest
    from ckstore.model.manifest.stored import OldPiece
    from ckstore.model.reports.transfer import EvictReport
    from ckstore.model.settings.free_space import Amount, Need
    from ckstore.model.settings.patience import OnFailure
    from ckstore.model.settings.recheck import Reading
    from ckstore.model.settings.settings import StoreSettings
    from ckstore.model.training_identity import Parent
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.objects.layout import Layout, RunStamp
    from ckstore.objects.publish import Rule
    from ckstore.objects.staging import Staging

T = TypeVar("T")
# In a store of 100,000 checkpoints the look takes 0.5 s: at most a twentieth of the time goes into it.
_MARKS_SHARE = 1 / 20
_MARKS_FREE_S = 0.005
_MOST_LINEAGES = 4  # of 20,000 tensors one takes 10 MB
_AS_A_WRITER = "run the command as a user who may write there"
"""A look that takes no longer is made with every save: some 1,000 checkpoints at 4 to 6 µs, measured on ext4."""


class RemoteAnswer(NamedTuple):
    """What the remotes of a store have of a blob or a manifest."""

    data: bytearray | None  # its bytes, compared; None: no remote has them
    source: str  # the name of the remote that they came from
    problems: tuple[str, ...]  # what the others said


class RemoteCopySource(Protocol):
    """Asks remotes for right bytes; its length is how many there are to ask. For several threads."""

    def __len__(self) -> int: ...

    def blob(self, blob: BlobRecord, places: Sequence[tuple[str, int, str]]) -> RemoteAnswer:
        """Return the bytes of a blob of the checkpoints at `places` (run, step and id), which have its digest."""

    def manifest(self, key: CheckpointKey) -> RemoteAnswer:
        """Return the bytes of the manifest of the checkpoint that belongs into a directory, by the id in its name."""


class Rescuer(Protocol):
    """Repairs what a load of one open store finds damaged or missing; for several threads."""

    def blob(
        self, directory: CheckpointDirectory, error: DamagedBlob | RemoteError, blob: BlobRecord, *, first: bool
    ) -> memoryview | None:
        """Repair the file that an error is about, or return the bytes of the blob; None: read it again."""

    def checkpoint(self, key: CheckpointKey) -> bool:
        """Repair everything that a look at a checkpoint finds missing or marked; False if something stays."""

    def tell(self, directory: CheckpointDirectory) -> None:
        """Say, when a checkpoint is closed, which of its blobs came from where."""


class SaveWatch:
    """Called as a save goes on, from several threads: a background saver tells its trainer. This one does nothing."""

    def staged(self) -> None:
        """The staging directory is there; what the store has is looked up and hashed next."""

    def hashed(self, nbytes: int) -> None:
        """The digest of so many more bytes is known."""

    def writing(self) -> None:
        """A blob is about to be written."""

    def written(self) -> None:
        """A blob is durable."""

    def syncing(self) -> None:
        """All blobs are there; the manifest is about to be written, and all made durable."""

    def publishing(self, step: int) -> None:
        """The next rename may publish the save at this step; raises if it must not."""

    def sealed(self, staging: Staging, manifest: Manifest, rule: Rule) -> None:
        """All of it lies sealed in `staging`, and the rename is next; raises if it must not be."""

    def committed(self, info: CheckpointInfo) -> None:
        """The checkpoint is durable; its tags, the catalog and retention follow."""

    def patience_s(self) -> float:
        """For how many seconds a save that failed may be tried again at most."""
        return math.inf

    def pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """A try failed; pause before the next one, until `is_over`. Raises if there must be none."""
        pause(seconds, is_over)


NO_WATCH = SaveWatch()


@dataclass
class ProcessCache:
    """What this process remembers of the store, so that its next save or load looks at less of it."""

    # Where packed pieces are that this process wrote or read and checked in its last save.
    pieces: dict[str, PieceLocation] = field(default_factory=dict)
    # The run that was last saved to, and what is known of the last readings of the blobs of that save.
    relied_on: tuple[str, Sequence[Reading]] = ("", ())
    # The greatest sequence number that this process gave or saw.
    greatest_sequence: HighWaterMark = field(default_factory=HighWaterMark)
    # For each run the checkpoint that was last saved to or loaded from it here; "" the last of all loads.
    last_parents: dict[str, Parent] = field(default_factory=dict)
    # What the caller said that this handle continues, whatever is loaded; None: nothing.
    declared: Parent | None = None
    # The names in the directory of each run when a training looked there last for those of other processes.
    seen_names: dict[str, frozenset[str]] = field(default_factory=dict)
    # What is known of manifests that this process has read or written.
    manifests: ManifestCache = field(default_factory=ManifestCache)
    # What is known of the directories of checkpoints. `greatest_sequence` is no less than that of any that is not
    # unsure in it.
    directories: DirectoryCache = field(default_factory=DirectoryCache)
    # The names in trash that `greatest_sequence` is no less than the numbers of.
    waiting: frozenset[str] = frozenset()
    # How each run was when this process last made its name durable, as `objects.publish` keeps it.
    synced_runs: dict[str, RunStamp | None] = field(default_factory=dict)
    # Checkpoints whose rows in the catalog turned out to be wrong and could not be mended yet.
    distrusted: dict[CheckpointKey, Stamp | None] = field(default_factory=dict)
    # For each run the fingerprints and digests of what its last save found on devices.
    device_seen: dict[str, dict[tuple[str, int, int, int], tuple[bytes, str]]] = field(default_factory=dict)
    own_files_renewed_s: float = 0.0  # when `ops.touch` last looked whether the store's own files are old
    # For each of the runs that were last saved to what is known of the tensors of its newest checkpoint.
    lineages: dict[str, Lineage] = field(default_factory=dict)
    # Of the last save of a rank: its run, and what is known of its pieces.
    counted: dict[str, CountedPieces] = field(default_factory=dict)
    # How often saves look for marks of damage in all checkpoints.
    marks_duty: DutyCycle = field(default_factory=lambda: DutyCycle(_MARKS_SHARE, free_s=_MARKS_FREE_S))

    def remember_lineage(self, run: str, lineage: Lineage) -> None:
        """Take note of the tensors of the newest checkpoint of a run; those of a few runs are kept."""
        self.lineages.pop(run, None)
        self.lineages[run] = lineage
        while len(self.lineages) > _MOST_LINEAGES:
            del self.lineages[next(iter(self.lineages))]


@dataclass
class Context:
    """An open store: what is true of it while it is open, and what it knows and has to say."""

    layout: Layout
    settings: StoreSettings
    catalog: Catalog
    readonly: bool
    durable: bool = True  # False on a filesystem that is not known to keep a checkpoint through a power cut
    not_durable_because: str = ""  # why, as a sentence; empty if it is
    # Why other hosts may be at work in the store, whose locks, open files and catalogs are not seen from here; empty if
    # that is impossible.
    shared: str = ""
    # Whether that is only assumed, since the settings could not be read: the store may be found to be local later.
    is_assumed_shared: bool = False
    # The catalog is this user's, or this host's, alone. Changes by other users and hosts are in theirs, so this one
    # catches up from all directories at each opening and before gc.
    catalog_is_private: bool = False
    # The run that is meant where a call or a ref names none; None: the handle is not bound to one.
    run: str | None = None
    # Where the caller wants the catalog; None: in its usual place.
    catalog_path: Path | None = None
    # Called after each commit, with the subscribers of the core: see `ops.save.subscribers`.
    subscribers: Sequence[Subscriber] = ()
    # Reads a range of a blob of an open checkpoint that is elsewhere, past the cache if the last is true, or turns an
    # older piece into it: None if that cannot be, else how many bytes came. None: remotes are not reached.
    fetch: Callable[[CheckpointDirectory, BlobRecord, int, memoryview, OldPiece | None, bool], int | None] | None = None
    # Returns who asks the remotes of the store for right bytes, and those at these URLs. None: remotes are not reached.
    remote_copies: Callable[[Sequence[str]], RemoteCopySource] | None = None
    # Repairs what loads find damaged, from the store itself and its remotes. None: loads repair nothing.
    rescuer: Rescuer | None = None
    # Lets go of bytes here of checkpoints that the mirror has, which it looks at first; None: it is not reached.
    evict: Callable[[Sequence[CheckpointInfo]], EvictReport] | None = None
    writes_disabled_because: str = ""  # why this process must not write to the store any more; empty if it may
    watch: SaveWatch = NO_WATCH  # called as a save goes on
    trainer_pid: int | None = None  # the process that a background saver saves for; None in every other process
    totals: SaveTotals = field(default_factory=SaveTotals)  # what the saves of this store did so far
    notices: Notices = field(default_factory=Notices)
    known: ProcessCache = field(default_factory=ProcessCache)

    @property
    def own_pid(self) -> int:
        """The process that users know: this one, or of a background saver its trainer."""
        return os.getpid() if self.trainer_pid is None else self.trainer_pid

    @LazyProperty
    def algorithm(self) -> Algorithm:
        """The hash algorithm of the store."""
        return algorithm_named(self.settings.hash)

    @LazyProperty
    def threads(self) -> int:
        """How many threads a call works with, as the settings or the machine say."""
        return self._setting_or_default(THREADS) or DEFAULT_THREADS

    @LazyProperty
    def on_failed_save(self) -> OnFailure:
        """What integrations do if the storage fails a save."""
        return self._setting_or_default(ON_FAILED_SAVE)

    @LazyProperty
    def failed_saves_most(self) -> int:
        """How many saves in a row may fail where a failure does not end the training."""
        return self._setting_or_default(FAILED_SAVES_MOST)

    def _setting_or_default(self, setting: Setting[T]) -> T:
        try:
            return setting_of(self.layout, setting)
        except (CkstoreError, OSError):  # a save reports damaged settings
            return setting.default

    @property
    def has_undo(self) -> bool:
        """Whether what is dropped waits for the undo of the settings; on shared filesystems the grace is that time."""
        return not self.shared or self.is_assumed_shared

    def of_step(self, run: str, step: int) -> list[CheckpointKey]:
        """Return the keys of the directories of one step; a run that has not changed is not listed again."""
        return self.known.directories.of_step(self.layout, run, step)

    def tell_passed_over(self) -> None:
        """Warn, once for an open store, of each run and checkpoint that this user may not look into."""
        for path, said in [*self.layout.passed_over.items()]:
            # A training of days saves thousands of times: each warning comes once for an open store.
            if path not in self.notices.problems:
                self.notices.problems[path] = f"passed over: {said}; {way_in(self.layout, path)}"
                warn(self.notices.problems[path])

    def measure(self, new: Amount) -> Need:
        """Compare what a save takes with what is free now."""
        from ckstore.model.settings.free_space import Need

        room = dirfd_stat.free_space(self.layout.path)
        return Need(new, room.free_bytes, room.free_inodes)

    def check_writable(self) -> None:
        """Raise if this process must not write to the store."""
        # Raises ReadOnlyStore: the store was opened for reading only.
        if self.readonly:
            msg = f"{self.layout.root} was opened for reading only"
            if dirfd_stat.is_mounted_read_only(self.layout.path):
                raise ReadOnlyStore(f"{msg}: its filesystem is mounted read-only", hint="mount it for writing")
            if not os.access(self.layout.path, os.W_OK):
                from ckstore.objects.survey import user_name

                owner = user_name(dirfd_stat.status(self.layout.root).st_uid)
                msg = f"{msg}: this user may not write there, and it belongs to {owner}"
                hint = "save as its owner; docs/how-to/group.md is about a store of several users"
                raise ReadOnlyStore(msg, hint=hint, command_hint=_AS_A_WRITER)
            raise ReadOnlyStore(msg, hint="open it with readonly=False", command_hint=_AS_A_WRITER)
        if self.writes_disabled_because:
            msg = f"{self.layout.root} accepts no more writes from this process: {self.writes_disabled_because}"
            raise SaveFailed(msg, hint="open the store again")


Origin = Literal["saved", "replaced", "existing", "joined"]
NEW: tuple[Origin, ...] = ("saved", "replaced")  # a save of this process added it to the store


@dataclass
class Publication:
    """A published checkpoint, durable and tagged, as the subscribers of its store receive it."""

    context: Context
    checkpoint: CheckpointInfo
    # How it came: `saved`, or `replaced` older ones of its step. `existing`: it was there, and stays in place of what
    # was to be saved. `joined`: the ranks of several nodes saved it, and this node lists it.
    origin: Origin
    notes: list[str] = field(default_factory=list)  # warnings of the save; each subscriber may add some
    laps: PhaseTimer = field(default_factory=PhaseTimer)  # how long each part of the save took
    counters: SaveCounters | None = None  # what the save did, without the times; None: that is not known

    @property
    def info(self) -> CheckpointInfo:
        """The info that the save returns, with the warnings and counters so far."""
        times: Mapping[str, Any] = self.laps.seconds
        counters = None if self.counters is None else replace(self.counters, **times)
        return replace(self.checkpoint, warnings=tuple(self.notes), counters=counters)

    @LazyProperty
    def settings(self) -> Mapping[str, Any]:
        """What ``config.json`` says; it is read once, and raises what `read_config` does."""
        # After the commit: rules that were changed during the save must hold for what is dropped now.
        return read_config(self.context.layout)


class Subscriber(NamedTuple):
    """Something that follows each commit."""

    name: str  # what it does, for messages; also the key of its problem in `Notices.problems`
    told: Callable[[Publication], Sequence[str]]  # returns what the user should know


def info_of(
    context: Context,
    manifest: Manifest,
    manifest_id: str,
    *,
    tags: tuple[str, ...] | None = None,
    key: CheckpointKey | None = None,
) -> CheckpointInfo:
    """Return everything that the store says about a checkpoint: its manifest, its tags, what was added to it."""
    # `tags`: None: they are looked up. `key`: where it is; None: where its id says.
    info = CheckpointInfo.of(manifest, manifest_id, directory="" if key is None else key.directory)
    if tags is None:
        tags = tags_by_checkpoint(context.layout).get(info.key.any_generation, ())
    info = replace(info, tags=tags, durable=context.durable)
    try:
        with context.layout.open_runs() as runs:
            there = runs.small_files(info.key)
    except (CkstoreError, OSError) as error:  # a save is acknowledged when this is asked
        context.notices.problems[f"mark of {info.name}"] = (
            f"whether {info.name} is marked as damaged, or is elsewhere, is not known: {error}"
        )
        there = frozenset((ANNOTATIONS,))
    return with_small_files(context, info, there)


def read_info(context: Context, key: CheckpointKey, tags: tuple[str, ...] = ()) -> CheckpointInfo | None:
    """Return what the manifest in a directory says; None if it holds no complete checkpoint."""
    from ckstore.objects.checkpoints import look

    found = look(context.layout, key)
    if found.published is None:
        if found.problem and not found.is_closed:
            context.notices.problems[key.name] = f"incomplete checkpoint, left alone: {found.problem}"
        return None
    published = found.published
    return CheckpointInfo.of(published.manifest, published.manifest_id, tags=tags, directory=key.directory)


def tags_by_checkpoint(layout: Layout) -> dict[CheckpointKey, tuple[str, ...]]:
    """Return the sorted tags of every checkpoint that has some, by the key of its first generation."""
    by_checkpoint: dict[CheckpointKey, list[str]] = {}
    for tag, target in sorted(layout.tags().items()):
        # A tag of a draft names the step. Until it is rewritten it protects all checkpoints of that.
        of_step = {key.any_generation for key in layout.of_step(*target.run_step)} if target.is_draft else ()
        for key in of_step or (target,):
            by_checkpoint.setdefault(key, []).append(tag)
    return {target: tuple(tags) for target, tags in by_checkpoint.items()}


def with_small_files(context: Context, info: CheckpointInfo, there: Collection[str]) -> CheckpointInfo:
    """Return `info` with what was added to the checkpoint since it was saved; `there`: which `SMALL_FILES` it has."""
    found = MARK in there, ELSEWHERE in there, PLAIN in there
    if (info.damaged, info.elsewhere, info.compacted) != found:
        info = replace(info, damaged=found[0], elsewhere=found[1], compacted=found[2])
    if ANNOTATIONS in there:
        return annotated(context, info)
    if context.notices.problems:  # a problem with annotations ends with them
        context.notices.problems.pop(annotation_problem(info), None)
    return info


def annotated(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the metrics and notes that were added to the checkpoint; what cannot be read is a problem."""
    key = annotation_problem(info)
    try:
        found = read_annotations(context.layout.checkpoint(info.key))
    except (CkstoreError, OSError) as error:
        context.notices.problems[key] = f"ignored the annotations of {info.name}: {error}"
        return info
    context.notices.problems.pop(key, None)
    if found is None:
        return info
    return info.with_annotations(found.metrics, found.notes)


def annotation_problem(info: CheckpointInfo) -> str:
    """Return the key in `Notices.problems` of what is wrong with the annotations of a checkpoint."""
    return f"annotations of {info.name}"
