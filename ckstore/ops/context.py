"""The state that all calls of one open store share, and the interfaces of observers and subscribers."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from ckstore.catalog import Catalog
from ckstore.errors import CkstoreError, ReadOnlyStore, SaveFailed, StoreNotFound
from ckstore.fs import dirfd_stat
from ckstore.model.digest import Algorithm, algorithm_named
from ckstore.model.lazy_property import LazyProperty
from ckstore.model.manifest.info import CheckpointInfo, Stamp, as_stored
from ckstore.model.names import CheckpointKey
from ckstore.model.words import arguments
from ckstore.objects.documents.annotations import read_annotations
from ckstore.objects.layout import ANNOTATIONS, BLOBS, MARK, PLAIN, HostView, lists_holders
from ckstore.ops.api_calls import places_of
from ckstore.ops.call_threads import DEFAULT_THREADS
from ckstore.ops.config_file import (
    FAILED_SAVES_MOST,
    ON_FAILED_SAVE,
    THREADS,
    Setting,
    read_config,
    settings_or_defaults,
)
from ckstore.ops.manifest_cache import DirectoryCache, HighWaterMark, ManifestCache
from ckstore.ops.notices import Notices, warn, way_in
from ckstore.ops.pace import DutyCycle, PhaseTimer, SaveTotals, pause
from ckstore.ops.settings_file import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from ckstore.catalog.queries import PieceLocation
    from ckstore.model.manifest.info import SaveCounters
    from ckstore.model.manifest.lineage import CountedPieces, Lineage
    from ckstore.model.manifest.manifest import BlobRecord, Manifest
    from ckstore.model.manifest.stored import OldPiece
    from ckstore.model.settings.free_space import Amount, Need
    from ckstore.model.settings.patience import OnFailure
    from ckstore.model.settings.recheck import Reading
    from ckstore.model.settings.retention import RetentionPolicy
    from ckstore.model.settings.retention_plan import RetentionPlan
    from ckstore.model.settings.settings import StoreSettings
    from ckstore.model.training_identity import Parent
    from ckstore.objects.checkpoints import CheckpointDirectory, Unreadable
    from ckstore.objects.layout import HostView, Layout, RunStamp
    from ckstore.objects.publish import Rule
    from ckstore.objects.staging import Staging

T = TypeVar("T")
# The maximum share of the time that checks for marks of damage take. A check of 100,000 checkpoints takes 0.5 s.
_MARKS_SHARE = 1 / 20
_MARKS_FREE_S = 0.005
"""The duration up to which every save makes the check. It suffices for 1,000 checkpoints at 4 to 6 µs each on ext4."""
_MOST_LINEAGES = 4  # the lineage of a checkpoint with 20,000 tensors takes 10 MB
_AS_A_WRITER = "run the command as a user who may write there"


class CopyAnswer(NamedTuple):
    """The answer of other places about a blob or a manifest."""

    data: bytearray | None  # its bytes, checked by digest; None if no place has them
    source: str  # the place that sent the bytes, for messages
    problems: tuple[str, ...]  # the answers of the places that did not send the bytes


class CopySource(Protocol):
    """Requests intact bytes from other places, for several threads; its length is the number of places."""

    def __len__(self) -> int: ...

    def blob(self, blob: BlobRecord, places: Sequence[tuple[str, int, str]]) -> CopyAnswer:
        """Return the bytes of a blob, checked by its digest; `places` are its checkpoints (run, step and id)."""

    def manifest(self, key: CheckpointKey) -> CopyAnswer:
        """Return the bytes of the manifest of the checkpoint whose id is in the name of its directory."""


class Rescuer(Protocol):
    """Repairs data that loads of one open store find damaged or missing; several threads use it."""

    def blob(
        self, directory: CheckpointDirectory, error: Unreadable, blob: BlobRecord, *, first: bool
    ) -> memoryview | None:
        """Repair the damaged file of a blob; return None on success, otherwise the bytes of the blob."""

    def checkpoint(self, key: CheckpointKey) -> bool:
        """Repair every missing or marked blob of a checkpoint; return whether the checkpoint is then complete."""

    def tell(self, directory: CheckpointDirectory) -> None:
        """Report the sources of repaired blobs when a checkpoint is closed."""


class Evictor(Protocol):
    """Frees the local data of checkpoints after checking that another place has this data."""

    @property
    def name(self) -> str:
        """The name of the other place."""

    def evictable(self) -> list[CheckpointInfo]:
        """Return the checkpoints with local data that the other place has, or none if it does not answer."""

    def plan(self, policy: RetentionPolicy) -> RetentionPlan:
        """Return which checkpoints keep their local data; the others can be evicted."""

    def evict(self, going: Sequence[CheckpointInfo]) -> Sequence[CheckpointInfo]:
        """Evict checkpoints, and return those that were evicted."""


class SaveWatch:
    """The observer of a save, which several threads of the save call.

    In this base class, only `pause` has an effect. Subclasses inform the trainer of a background saver, or coordinate
    several ranks.
    """

    def staged(self) -> None:
        """Note that the staging directory exists; next, existing blobs are looked up and data is hashed."""

    def hashed(self, nbytes: int) -> None:
        """Note that `nbytes` more bytes were hashed."""

    def writing(self) -> None:
        """Note that a blob is about to be written."""

    def written(self) -> None:
        """Note that a blob is durable."""

    def syncing(self) -> None:
        """Note that all blobs are stored; next, the manifest is written, and everything is made durable."""

    def publishing(self, step: int) -> None:
        """Note that the next rename may publish the save at this step; an error prevents the rename."""

    def sealed(self, staging: Staging, manifest: Manifest, rule: Rule) -> None:
        """Note that the checkpoint is sealed in `staging` and the rename is next; an error prevents the rename."""

    def committed(self, info: CheckpointInfo) -> None:
        """Note that the checkpoint is durable; its tags, the catalog and retention follow."""

    def patience_s(self) -> float:
        """Return the maximum time in seconds for which a failed save may be retried."""
        return math.inf

    def pause(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Pause after a failed try until `is_over` returns True; an error prevents another try."""
        pause(seconds, is_over)


NO_WATCH = SaveWatch()


@dataclass
class ProcessCache:
    """The facts that this process remembers about the store, so that its next save or load checks less."""

    # The locations of packed pieces that this process wrote or confirmed in its last save.
    pieces: dict[str, PieceLocation] = field(default_factory=dict)
    # The run of the last save, and the last readings of the blobs of that save.
    relied_on: tuple[str, Sequence[Reading]] = ("", ())
    # The greatest sequence number that this process used or found.
    greatest_sequence: HighWaterMark = field(default_factory=HighWaterMark)
    # Run -> the checkpoint that this process last saved or loaded; "" -> that of the last load of any run.
    last_parents: dict[str, Parent] = field(default_factory=dict)
    # The parent that the caller declared when opening the store; None if no parent was declared.
    declared: Parent | None = None
    # Run -> the names in its directory when a save last checked it for checkpoints of other processes.
    seen_names: dict[str, frozenset[str]] = field(default_factory=dict)
    # The facts of manifests that this process has read or written.
    manifests: ManifestCache = field(default_factory=ManifestCache)
    # The directories of checkpoints. If a checkpoint is not `unsure`, its number is at most `greatest_sequence`.
    directories: DirectoryCache = field(default_factory=DirectoryCache)
    # The names in trash of the checkpoints whose sequence numbers were checked and are at most `greatest_sequence`.
    waiting: frozenset[str] = frozenset()
    # Run -> its state when this process last made its name durable. `objects.publish` keeps these entries.
    synced_runs: dict[str, RunStamp | None] = field(default_factory=dict)
    # Checkpoints whose rows in the catalog are wrong and could not be repaired yet.
    distrusted: dict[CheckpointKey, Stamp | None] = field(default_factory=dict)
    # Run -> the fingerprints and digests of those chunks of its last save that are in another memory space.
    chunk_fingerprints: dict[str, dict[tuple[str, int, int, int], tuple[bytes, str]]] = field(default_factory=dict)
    # Device, inode and change time of ``store.json`` when its id was last checked.
    settings_file: tuple[int, int, int] | None = None
    own_files_renewed_s: float = 0.0  # when `ops.touch` last checked whether the store's own files are old
    # Run -> the facts about the tensors of its newest checkpoint, for the runs that were saved to most recently.
    lineages: dict[str, Lineage] = field(default_factory=dict)
    # The run of the last save of a rank -> the counts of its pieces.
    counted: dict[str, CountedPieces] = field(default_factory=dict)
    # Limits how often saves check all checkpoints for marks of damage.
    marks_duty: DutyCycle = field(default_factory=lambda: DutyCycle(_MARKS_SHARE, free_s=_MARKS_FREE_S))

    def remember_lineage(self, run: str, lineage: Lineage) -> None:
        """Remember the facts about the tensors of the newest checkpoint of a run, for a few runs at most."""
        self.lineages.pop(run, None)
        self.lineages[run] = lineage
        while len(self.lineages) > _MOST_LINEAGES:
            del self.lineages[next(iter(self.lineages))]


@dataclass
class Context:
    """An open store: its settings and state, the facts that this process remembers, and its notices."""

    layout: Layout
    settings: StoreSettings
    catalog: Catalog
    readonly: bool
    durable: bool = True  # False on a filesystem that may lose a checkpoint in a power cut
    not_durable_because: str = ""  # why the store is not durable, as a sentence; empty if it is durable
    # Whether the catalog belongs to this user or host only. Other users and hosts then record their changes in their
    # own catalogs, so this catalog is updated from all directories at each opening and before gc.
    catalog_is_private: bool = False
    # The run of calls and refs that name no run; None if the store is not bound to a run.
    run: str | None = None
    # The URL of the remote that the caller opened, which this store lists; empty if the caller opened the store itself.
    url: str = ""
    # The requested path of the catalog; None for the default.
    catalog_path: Path | None = None
    # The functions to call after each commit, in addition to those of the core (`ops.save.subscribers`).
    subscribers: Sequence[Subscriber] = ()
    # The modules of higher floors whose `attach` was called with this store. A background saver also calls `attach`.
    attached: tuple[str, ...] = ()
    # Fills memory with a range of a blob of an open checkpoint, from a remote or from an older piece. If the last
    # argument is True, the cache is bypassed. The function returns how many bytes were downloaded, or None if it cannot
    # fill the memory. The field is None without access to remotes.
    fetch: Callable[[CheckpointDirectory, BlobRecord, int, memoryview, OldPiece | None, bool], int | None] | None = None
    # Repairs data that loads find damaged, from the store itself and its remotes. If None, loads repair nothing.
    rescuer: Rescuer | None = None
    # Returns the evictor for a save that lacks space, or None if no other place gets every checkpoint.
    evictor: Callable[[], Evictor | None] | None = None
    writes_disabled_because: str = ""  # why this process must not write to the store any more; empty if it may
    watch: SaveWatch = NO_WATCH  # called during a save
    trainer_pid: int | None = None  # the process that a background saver saves for; None in every other process
    totals: SaveTotals = field(default_factory=SaveTotals)  # counts of the saves of this store so far
    notices: Notices = field(default_factory=Notices)
    known: ProcessCache = field(default_factory=ProcessCache)

    @property
    def own_pid(self) -> int:
        """The PID of the process that users know: this process, or the trainer of a background saver."""
        return os.getpid() if self.trainer_pid is None else self.trainer_pid

    @LazyProperty
    def algorithm(self) -> Algorithm:
        """The hash algorithm of the store."""
        return algorithm_named(self.settings.hash)

    @LazyProperty
    def threads(self) -> int:
        """The number of threads of a call, from the settings or for this machine."""
        return self._setting_or_default(THREADS) or DEFAULT_THREADS

    @LazyProperty
    def on_failed_save(self) -> OnFailure:
        """The reaction of integrations to a save that fails because of the storage."""
        return self._setting_or_default(ON_FAILED_SAVE)

    @LazyProperty
    def failed_saves_most(self) -> int:
        """The number of saves in a row that may fail without ending the training."""
        return self._setting_or_default(FAILED_SAVES_MOST)

    def _setting_or_default(self, setting: Setting[T]) -> T:
        found: T = settings_or_defaults(self.layout, setting)[0]  # a save reports damaged settings
        return found

    @property
    def view(self) -> HostView:
        """The visibility, on this host, of other processes that use the store."""
        return self.layout.view

    @property
    def has_undo(self) -> bool:
        """Whether dropped data is kept for the undo time in the settings instead of the grace period."""
        return self.view.frees_at_once or self.view.is_assumed

    def of_step(self, run: str, step: int) -> list[CheckpointKey]:
        """Return the keys of the directories of one step; the run is listed only if it has changed."""
        return self.known.directories.of_step(self.layout, run, step)

    def tell_passed_over(self) -> None:
        """Warn, once per open store, about each run and checkpoint that this user may not read."""
        for path, said in [*self.layout.passed_over.items()]:
            # Warn only once, since a long training saves thousands of times.
            if path not in self.notices.problems:
                self.notices.problems[path] = f"skipped: {said}. {way_in(self.layout, path)}"
                warn(self.notices.problems[path])

    def measure(self, new: Amount) -> Need:
        """Compare the space that a save needs with the free space."""
        from ckstore.model.settings.free_space import Need

        room = dirfd_stat.free_space(self.layout.path)
        return Need(new, room.free_bytes, room.free_inodes)

    def act_places(self) -> tuple[object, ...]:
        """Return the keys of this store at the beginning of a call; see `api_calls.api_call`.

        Raises:
            StoreNotFound: Another store is now at the path of this store.
        """
        self.check_is_same_store()
        return places_of(self.layout.path)

    def check_writable(self) -> None:
        """Raise if this process must not write to the store, or another store has replaced it.

        Raises:
            ReadOnlyStore: The store was opened for reading only.
            SaveFailed: Writes are disabled after an error.
            StoreNotFound: Another store is now at the path of this store.
        """
        self.check_accepts_writes()
        self.check_is_same_store()

    def check_is_same_store(self) -> None:
        """Raise StoreNotFound if another store was created or mounted at the path of this store after its opening."""
        try:
            found = dirfd_stat.status(self.layout.settings)
            identity = (found.st_dev, found.st_ino, found.st_ctime_ns)
            if identity == self.known.settings_file:
                return
            uuid = read_settings(self.layout.path).uuid
        except (CkstoreError, OSError):
            # If only store.json is damaged, the training must continue. A missing store raises at the next access.
            return
        if uuid != self.settings.uuid:
            raise another_store(self.layout, uuid, self.settings.uuid)
        self.known.settings_file = identity

    def check_accepts_writes(self) -> None:
        """Raise if this process must not write to the store.

        For a store opened for writing, no file is accessed.

        Raises:
            ReadOnlyStore: The store was opened for reading only.
            SaveFailed: Writes are disabled after an error.
        """
        if self.url:
            how = "change the store that pushes to it, or make a store of your own"
            raise ReadOnlyStore(
                f"{self.url} was opened by its URL, which allows reading only",
                hint=f"{how}: Store.clone({self.url!r}, PATH)",
                command_hint=f"{how}: ckstore clone {arguments(self.url)} PATH",
            )
        if self.readonly:
            msg = f"{self.layout.root} was opened for reading only"
            if dirfd_stat.is_mounted_read_only(self.layout.path):
                raise ReadOnlyStore(f"{msg}: its filesystem is mounted read-only", hint="mount it for writing")
            if not os.access(self.layout.path, os.W_OK):
                from ckstore.objects.survey import user_name

                owner = user_name(dirfd_stat.status(self.layout.root).st_uid)
                msg = f"{msg}: this user may not write there, and it belongs to {owner}"
                hint = "save as its owner; docs/how-to/group.md describes a store of several users"
                raise ReadOnlyStore(msg, hint=hint, command_hint=_AS_A_WRITER)
            raise ReadOnlyStore(msg, hint="open it with readonly=False", command_hint=_AS_A_WRITER)
        if self.writes_disabled_because:
            msg = f"{self.layout.root} accepts no more writes from this process: {self.writes_disabled_because}"
            raise SaveFailed(msg, hint="open the store again")


def another_store(layout: Layout, uuid: str, expected: str) -> StoreNotFound:
    """Return the error for a store with an unexpected id."""
    msg = f"another store is now at {layout.root}: its id is {uuid}, not {expected}"
    return StoreNotFound(msg, hint="open that store, or mount or move the former one back")


Origin = Literal["saved", "replaced", "existing", "joined", "reported"]
NEW: tuple[Origin, ...] = ("saved", "replaced")  # the origins of a checkpoint that a save of this process has added


@dataclass
class Publication:
    """A published checkpoint, durable and tagged, as the subscribers of its store receive it."""

    context: Context
    checkpoint: CheckpointInfo
    # `saved` if this save added the checkpoint, or `replaced` if it also replaced older checkpoints of its step.
    # `existing` if the checkpoint existed before and was kept instead of the state of this save. `joined` if the ranks
    # of several nodes saved it, and this node adds it to its catalog. `reported` if a saver process or another rank
    # published it, and this is the process of the caller.
    origin: Origin
    notes: list[str] = field(default_factory=list)  # warnings of the save; each subscriber may add some
    laps: PhaseTimer = field(default_factory=PhaseTimer)  # the duration of each part of the save
    counters: SaveCounters | None = None  # the counts of bytes and blobs, without times; None if they are unknown

    @property
    def info(self) -> CheckpointInfo:
        """The info that the save returns, with the warnings and counters so far."""
        times: Mapping[str, Any] = self.laps.seconds
        counters = None if self.counters is None else replace(self.counters, **times)
        return replace(self.checkpoint, warnings=tuple(self.notes), counters=counters)

    @LazyProperty
    def settings(self) -> Mapping[str, Any]:
        """The settings in ``config.json``, read once; raises the errors of `read_config`."""
        # The settings are read after the commit, so that rules that were changed during the save apply to the drops.
        return read_config(self.context.layout)

    def asks_for(self, setting: Setting[Any]) -> bool:
        """Whether the checkpoint is new in the store, and the setting is set."""
        try:
            return self.origin in NEW and self.settings.get(setting.name) is not None
        except (CkstoreError, OSError):  # retention also reads the settings, and has reported the error
            return False


class Subscriber(NamedTuple):
    """A function that is called after each commit."""

    name: str  # its action, for messages; also the key of its problem in `Notices.problems`
    told: Callable[[Publication], Sequence[str]]  # returns notes for the user
    of_caller: bool = False  # also called in the process of the caller if a saver or another rank published
    # Returns members for the metadata of a save that begins in this thread. Members of the same name from the caller
    # take precedence. The function is called in the process of the caller, and must neither do I/O nor raise. If there
    # are ranks, only the first rank calls it.
    facts: Callable[[], Mapping[str, Any]] | None = None


def info_of(
    context: Context,
    manifest: Manifest,
    manifest_id: str,
    *,
    tags: tuple[str, ...] | None = None,
    key: CheckpointKey | None = None,
) -> CheckpointInfo:
    """Return all facts about a checkpoint: its manifest, its tags, and its annotations.

    Args:
        context: The store.
        manifest: The manifest.
        manifest_id: The id.
        tags: The tags of the checkpoint. If None, they are looked up.
        key: The directory of the checkpoint. If None, the directory is determined by its id.
    """
    info = CheckpointInfo.of(manifest, manifest_id, directory="" if key is None else key.directory)
    if tags is None:
        tags = tags_by_checkpoint(context.layout).get(info.key.any_generation, ())
    info = replace(info, tags=tags, durable=context.durable)
    try:
        with context.layout.open_runs() as runs:
            there = runs.small_files(info.key)
    except (CkstoreError, OSError) as error:  # this must not fail after a commit
        context.notices.problems[f"mark of {info.name}"] = (
            f"it is not known whether {info.name} is marked as damaged, or has data on a remote: {error}"
        )
        there = frozenset((ANNOTATIONS,))
    return with_small_files(context, info, there)


def read_info(context: Context, key: CheckpointKey, tags: tuple[str, ...] = ()) -> CheckpointInfo | None:
    """Return the facts in the manifest of a directory, or None if it holds no complete checkpoint."""
    from ckstore.objects.checkpoints import look

    found = look(context.layout, key)
    if found.published is None:
        if found.problem and not found.is_closed:
            context.notices.problems[key.name] = f"incomplete checkpoint, not changed: {found.problem}"
        return None
    published = found.published
    return CheckpointInfo.of(published.manifest, published.manifest_id, tags=tags, directory=key.directory)


def tags_by_checkpoint(layout: Layout) -> dict[CheckpointKey, tuple[str, ...]]:
    """Return the sorted tags of every tagged checkpoint, by the key of its first generation."""
    by_checkpoint: dict[CheckpointKey, list[str]] = {}
    for tag, target in sorted(layout.tags().items()):
        # A tag of a draft format names only the step. Until it is rewritten, it protects all checkpoints of the step.
        of_step = {key.any_generation for key in layout.of_step(*target.run_step)} if target.is_draft else ()
        for key in of_step or (target,):
            by_checkpoint.setdefault(key, []).append(tag)
    return {target: tuple(tags) for target, tags in by_checkpoint.items()}


def with_small_files(context: Context, info: CheckpointInfo, there: Collection[str]) -> CheckpointInfo:
    """Return `info` with facts that were added after the save; `there` has the names of existing `SMALL_FILES`."""
    lacks_blobs = bool(there) and lists_holders(there) and _lacks_blobs(context, info.key)
    info = as_stored(info, damaged=MARK in there, lacks_blobs=lacks_blobs, compacted=PLAIN in there)
    if ANNOTATIONS in there:
        return annotated(context, info)
    if context.notices.problems:  # if the annotations were removed, their problem no longer exists
        context.notices.problems.pop(annotation_problem(info), None)
    return info


def _lacks_blobs(context: Context, key: CheckpointKey) -> bool:
    """Whether a checkpoint with data on a remote lacks local blobs; a killed eviction may not have freed any blob."""
    with suppress(FileNotFoundError, PermissionError):
        if any(dirfd_stat.names(context.layout.checkpoint(key) / BLOBS)):
            from ckstore.objects.checkpoints import lacks_blobs  # rarely needed: most evicted checkpoints have no blobs

            return lacks_blobs(context.layout, key)
    return True


def annotated(context: Context, info: CheckpointInfo) -> CheckpointInfo:
    """Return `info` with the annotations of the checkpoint; if they cannot be read, a problem is noted instead."""
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
    """Return the key in `Notices.problems` for the annotations of a checkpoint."""
    return f"annotations of {info.name}"
