"""The facade `Store`; each method calls a function of another module, which is imported on first use."""

from __future__ import annotations

import errno
import html
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, SupportsIndex, Unpack, overload

from ckstore.background import BackgroundSaves
from ckstore.errors import BadInput, StepExists, StoreNotFound
from ckstore.interpreter import log_notes
from ckstore.model.brief import BriefList
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import AUTO, CAPTURED, DEFAULT_RUN, check_run, expanded
from ckstore.model.sizes import is_number
from ckstore.ops.api_calls import api_call, api_call_in_memory, check_options, of_state
from ckstore.remote.mirror.attachment import attach, wake_mirror
from ckstore.saver.helper_processes import COMPACTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType

    from ckstore.errors import DamagedBlob, RemoteError
    from ckstore.model.brief import HtmlReport
    from ckstore.model.checkpoint.pins import Pin
    from ckstore.model.checkpoint.tag import Tag
    from ckstore.model.doctor.finding import DoctorReport
    from ckstore.model.manifest.info import RunSummary
    from ckstore.model.manifest.manifest import BlobRecord
    from ckstore.model.names import CheckpointKey
    from ckstore.model.remote.transfer import EvictReport, MirrorStatus, TransferReport
    from ckstore.model.reports.compaction import CompactionReport
    from ckstore.model.reports.diff import Diff
    from ckstore.model.reports.event import Event
    from ckstore.model.reports.export_report import CheckoutReport, ExportCheck, ExportReport
    from ckstore.model.reports.gc_report import GcReport, Waiting
    from ckstore.model.reports.migrate_report import MigrateReport
    from ckstore.model.reports.not_saved import NotSaved
    from ckstore.model.reports.progress import Progress
    from ckstore.model.reports.reindex_report import ReindexReport
    from ckstore.model.reports.touch_report import TouchReport
    from ckstore.model.reports.usage import Usage, Use
    from ckstore.model.reports.verify_report import VerifyReport
    from ckstore.model.saver.status import SaverStatus
    from ckstore.model.settings.patience import OnFailure
    from ckstore.model.settings.retention import RetentionPolicy
    from ckstore.model.settings.retention_plan import RetentionPlan
    from ckstore.model.settings.settings import StoreSettings
    from ckstore.model.training_identity import IfRunInUse, Parent
    from ckstore.objects.checkpoints import CheckpointDirectory
    from ckstore.objects.publish import IfExists
    from ckstore.ops.config import StoreConfig
    from ckstore.ops.context import Context, CopySource
    from ckstore.ops.read.checkout import LinkMode
    from ckstore.ops.read.export_cast import WeightDtype
    from ckstore.ops.read.export_formats import ExportFormat
    from ckstore.ops.read.load import Select
    from ckstore.ops.read.open_checkpoint import OpenCheckpoint
    from ckstore.ops.read.target_load import LoadReport
    from ckstore.ops.refs.follow import Follower
    from ckstore.ops.report.doctor import MoreChecks
    from ckstore.ops.save.options import SaveOptions
    from ckstore.ops.save.save import Request
    from ckstore.ranks.attempt import Ranks
    from ckstore.ranks.separate_stores import SeparateStores
    from ckstore.remote.choice import ChoiceOptions, TransferOptions
    from ckstore.remote.remote_only.clone import News
    from ckstore.remote.remote_only.remote_reader import RemoteReader
    from ckstore.remote.remote_only.rescue import RemoteRescuer
    from ckstore.remote.remote_opener import RemoteLike
    from ckstore.remote.remotes import Remotes
    from ckstore.saver.client.pending import PendingSave
    from ckstore.weights.publisher import WeightPublisher
    from ckstore.weights.version_directory import DifferenceForm

RefLike = str | SupportsIndex | CheckpointInfo
"""A ref as a string, a step number or a `CheckpointInfo`. A string is a step, ``latest``, ``latest-valid``,
``latest-healthy``, ``best:METRIC``, a tag, or 6 or more digits of an id, optionally prefixed with ``RUN@``."""


class Store:
    """An open store.

    Several threads may use it. It holds no file open between calls, so `close` is optional. Opening a store for writing
    moves the leftovers of killed saves to the trash and updates the catalog.

    In addition to the errors listed at each method, every method raises `CkstoreError` if the system refuses an
    operation or memory runs out, and `UnsafePlace` if a directory of the store was replaced by another file. A method
    raises `InUse` if it is called during another call of the same thread, for example from a signal handler. Methods
    that change the store raise `ReadOnlyStore` if the store was opened for reading.

    Attributes:
        path: Directory of the store.
        run: The run that the handle is bound to, or None. See `open`.
        background: The unfinished saves of `save_async`. Its methods wait for these saves, finish or abandon them
            before the process ends, and prepare memory and the saver before the first save.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: str | None = None,
        readonly: bool = False,
        recover: bool = True,
        catalog_path: str | os.PathLike[str] | None = None,
        continue_from: RefLike | None = None,
    ) -> None:
        self.path = _resolved(path)
        self.run = None if run is None or run == AUTO else check_run(run)
        self._context, self._notes = _open(
            self.path,
            run=self.run,
            readonly=readonly,
            recover=recover,
            catalog_path=None if catalog_path is None else expanded(catalog_path),
        )
        self.background = BackgroundSaves(self._context, self.path)
        # For a remote opened by URL: the writable context that lists new checkpoints.
        self._listing: Context | None = None
        self._auto_run: str | None = None
        if run == AUTO:
            _refuse_ranks(os.environ.get("WORLD_SIZE", ""))
            self._bind_new_run()
        if continue_from is not None:
            self._continue(continue_from)

    @classmethod
    def init(
        cls,
        path: str | os.PathLike[str],
        *,
        run: str | None = None,
        hash: str = "xxh3_128",
        chunk_bytes: int | None = None,
        catalog_path: str | os.PathLike[str] | None = None,
    ) -> Store:
        """Create a new store in the directory `path` and open it.

        Args:
            path: An empty or missing directory. Missing parents are created, and removed if the call fails.
            hash: ``xxh3_128``, or ``blake3`` for stores that receive data from untrusted sources.
            run: As in `open`. The store does not record it.
            chunk_bytes: Tensors are split into chunks of this size, a multiple of 1 MiB. The default is 32 MiB.
            catalog_path: As in `open`. The store does not record it.

        Raises:
            BadInput: `path` already contains a store or other files, or an argument is invalid.
            UnsafePlace: The filesystem cannot hold a store.
        """
        root = _resolved(path)
        _create(root, hash, chunk_bytes, catalog_path, exist_ok=False)
        return cls(root, run=run, catalog_path=catalog_path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        run: str | None = None,
        readonly: bool = False,
        recover: bool = True,
        catalog_path: str | os.PathLike[str] | None = None,
        continue_from: RefLike | None = None,
    ) -> Store:
        """Open the store at `path`, like ``Store(path)``.

        A catalog that is missing, damaged or of an older ckstore is repaired with a `CkstoreWarning`.

        Args:
            path: The directory of the store, or the URL of a remote (``s3://…``), which is opened for reading. Existing
                checkpoints of the remote are listed, and loads download what they read. Only `follow` lists new ones:
                ``list(store.follow(run, timeout_s=0))`` lists those that were pushed meanwhile, so that ``latest`` is
                current again. Checkpoints that are deleted from the remote remain listed.
            run: Binds this handle to a run. Saves, commits, and calls and refs that name no run use this run. Tags and
                ids name a checkpoint of any run. If None, saves use ``main``, and ``latest`` without a run is refused
                if the store has several runs. ``auto`` creates a new run: ``main``, or the first of ``main-2``,
                ``main-3`` … that no process has taken. The attribute `run` of the handle has the name of the new run.
            readonly: If True, neither opening nor any later call changes the store.
            recover: If False, opening repairs nothing. Use this before `reindex`, which makes the repairs itself.
            catalog_path: The file of the index, on a disk of this host. Its directory is created. If None, it is
                ``catalog.db`` in the store. If the store is on a shared filesystem or other users may write to it,
                it is ``ckstore/UUID/catalog.db`` in the user's cache. A path outside the store declares that other
                hosts use the store with their own catalogs; see `gc`.
            continue_from: The checkpoint that saves of this handle continue, as if it had been loaded. This also
                applies to saves of frameworks through the handle.

        Raises:
            StoreNotFound: `path` holds no store.
            NoSuchRef: The checkpoint `continue_from` does not exist.
            NewerFormat: A newer ckstore made the store.
            UnsafePlace: The store is opened for writing and the filesystem lacks a feature that a store needs, or the
                catalog would be on a shared filesystem.
            BadInput: `catalog_path` is not usable, or is the catalog of another store.
        """
        if isinstance(path, str) and "://" in path:
            return cls._open_there(path, run)
        return cls(
            path,
            run=run,
            readonly=readonly,
            recover=recover,
            catalog_path=catalog_path,
            continue_from=continue_from,
        )

    @classmethod
    def _open_there(cls, url: str, run: str | None) -> Store:
        """Open a remote for reading, through a clone in a temporary directory that lives as long as the handle."""
        import weakref

        from ckstore.remote.remote_only.temporary import make_temporary

        folder, remove = make_temporary()
        try:
            listing = cls.clone(url, folder / "store", run=run)
            store = cls(listing.path, run=run, readonly=True)
        except BaseException:
            remove()
            raise
        store._listing = listing._context  # noqa: SLF001 - its own
        store._context.url = url
        weakref.finalize(store, remove)
        return store

    @classmethod
    def open_or_init(
        cls,
        path: str | os.PathLike[str],
        *,
        run: str | None = None,
        hash: str = "xxh3_128",
        chunk_bytes: int | None = None,
        catalog_path: str | os.PathLike[str] | None = None,
        mirror: str | os.PathLike[str] | None = None,
        continue_from: RefLike | None = None,
    ) -> Store:
        """Open the store at `path`, or create it if it does not exist.

        Several processes may do this at the same time. The creation of a store is logged. If a store of a similar name
        exists in the same directory, a `CkstoreWarning` names the similar store, since a mistyped path would otherwise
        restart a training.

        Args:
            path: The directory of the store. Missing parents of a new store are created.
            run: See `open`.
            hash: For a new store, as in `init`.
            chunk_bytes: For a new store, as in `init`.
            catalog_path: See `open`.
            mirror: The remote to which each checkpoint is copied once it is durable locally. Pass a URL
                (``s3://BUCKET/PREFIX``), a directory, which is created if missing, or the name of a remote of the
                store. A new store lists the checkpoints of the remote immediately, like a store made by `clone`, and
                has the same hash and chunk size, so a training can continue on another machine. The mirror is stored as
                the setting `StoreConfig.mirror`. If this mirror is already set, no request is made. If None, the
                setting applies.
            continue_from: See `open`.

        Raises:
            RemoteError: The mirror does not answer, and the store is new or did not have this mirror.
            NoSuchRemote: `mirror` is a name, and there is no remote of that name.
            NewerFormat: A newer ckstore made the existing store.
            UnsafePlace: The filesystem cannot hold a store.
            BadInput: Something else is at `path`, no directory can be made there, or an argument is out of range.
        """
        store = None
        with suppress(StoreNotFound):  # in an `except` block, later errors would show this error as their context
            store = cls(path, run=run, catalog_path=catalog_path)
        if store is None:
            root = _resolved(path)
            if mirror is not None:
                # Read the settings of the mirror first, which raises if the mirror does not answer. A new store without
                # the checkpoints of the mirror would start the training from the beginning.
                hash, chunk_bytes = _settings_at(root, mirror) or (hash, chunk_bytes)
            if _create(root, hash, chunk_bytes, catalog_path, exist_ok=True):
                _tell_made(root)
            store = cls(root, run=run, catalog_path=catalog_path)
        if mirror is not None:
            store._mirror_to(mirror)
        if continue_from is not None:
            store._continue(continue_from)
        return store

    @classmethod
    def clone(
        cls,
        source: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        run: str | None = None,
        remote: str = "origin",
        endpoint: str | None = None,
        region: str | None = None,
    ) -> Store:
        """Create a store at `path` that lists every checkpoint of a remote.

        Loads download the data they read. Manifests, tags, pins and annotations are downloaded, but no blobs. The blobs
        remain on the remote, as after `evict`, and `pull` downloads them. An existing clone of that remote is updated
        with its new checkpoints.

        Args:
            source: The URL of a remote, its directory, or the directory of a store, as in `remotes.add`.
            path: As in `init`, or an existing clone of the remote.
            run: As in `open`.
            remote: The name of the remote in the new store.
            endpoint: As in `remotes.add`.
            region: As in `remotes.add`.

        Raises:
            BadInput: `path` holds something else, or an argument is invalid.
            StoreNotFound: There is no store in the directory `source`.
            UnsafePlace: The filesystem cannot hold a store.
            RemoteError: There is no remote at that URL, or it does not answer. A repeated call continues the download.
        """
        from ckstore.remote.remote_only.clone import has_remote

        store = None
        with suppress(StoreNotFound):  # as in `open_or_init`
            store = cls(path, run=run)
        if store is None:
            hash_name, chunk_bytes = _new_settings(_resolved(path), source, remote, endpoint, region)
            store = cls.init(path, run=run, hash=hash_name, chunk_bytes=chunk_bytes)
        if not has_remote(store._context, remote, source, endpoint, region):  # noqa: SLF001 - its own
            store.remotes.add(remote, source, endpoint=endpoint, region=region)
        store._list_remote(remote)  # noqa: SLF001 - its own
        return store

    @overload
    def save(
        self,
        state: object,
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        on_failure: Literal["raise"] = "raise",
    ) -> CheckpointInfo: ...

    @overload
    def save(
        self,
        state: object,
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        on_failure: OnFailure,
    ) -> CheckpointInfo | NotSaved: ...

    @api_call
    @of_state
    def save(
        self,
        state: object,
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        on_failure: OnFailure = "raise",
    ) -> CheckpointInfo | NotSaved:
        """Save a state durably: the checkpoint survives a kill and a power cut (unless ``info.durable`` is False).

        The state is a nested dict, list or tuple of tensors, NumPy arrays, int, float, complex, bool, str, bytes and
        None. Objects with ``state_dict`` and ``load_state_dict`` (modules, optimizers, schedulers) are saved as their
        state dict. The state must not be changed until this call returns. Data that the store already has is not
        written again. A save is retried after a transient storage failure (see `retries`).

        Args:
            state: The state to save.
            step: Step number. If None, one more than the highest step of the run.
            run: Name of the run. If None, the run of `open`, otherwise ``main``. ``auto`` creates a new run with a name
                derived from that run, and all saves of this handle with ``auto`` use the new run.
            metrics: Name -> number, shown by ``ckstore log``. A commit does not read metrics from its files.
            metadata: JSON-like values.
            message: Shown by ``ckstore log``.
            tags: Names to give to the checkpoint. An existing tag moves to this checkpoint. If a tag cannot be written,
                the checkpoint is saved anyway. The returned tags then lack this tag, and `warnings` has the reason.
            parent: The checkpoint that the new one continues. If None, the checkpoint of this run that this process
                last saved or loaded, otherwise the checkpoint of any run that this process last loaded. In
                `save_async`, the saver looks up the parent unless it is a `CheckpointInfo`.
            if_exists: What to do if the run has another checkpoint at that step. ``error`` raises, ``replace`` replaces
                it, and ``keep`` keeps it and saves nothing. Equal content is not an error, and a damaged checkpoint is
                replaced. A replaced checkpoint is dropped unless it is tagged, pinned or open. In that case it is kept
                as superseded, and `warnings` reports this. Only checkpoints of the same training are replaced. These
                are the checkpoints that this process has saved, and those of the training that it continues after a
                load or with `parent`.
            if_run_in_use: What to do if this save continues no checkpoint of its run, and the run has checkpoints of
                another training. ``error`` raises `RunInUse`, and ``append`` adds a note to `warnings`. If None,
                ``error`` for a state from `ckstore.training.capture`, otherwise ``append``.
            retries: How many times to retry after a transient storage failure, each time as a new save. If None,
                `StoreConfig.save_retries`. The state must not change between the tries.
            wait_for_space_s: How long to wait for space on a full disk. If None, `StoreConfig.wait_for_space_s`.
            try_for_s: Retry for this many seconds after the save began, without a limit on the number of tries. Use
                this for the last save before the process ends. If None, `retries` and `wait_for_space_s` apply, which
                are otherwise ignored.
            progress: Called periodically with the number of bytes stored and the total to store.
            ranks: Describes this process as one of several ranks that each save a part, without a process group.
            on_failure: Reaction to a failure of the storage after all retries. ``raise`` raises it. ``warn`` warns and
                returns `NotSaved`, until more than `StoreConfig.failed_saves_most` saves in a row have failed. Other
                errors, and `UnknownOutcome`, are always raised.

        Returns:
            The new checkpoint, or the existing one if its content is identical or ``if_exists="keep"``. Its `warnings`
            are also logged by the logger ``ckstore``. A failed save with ``on_failure="warn"`` returns `NotSaved`.

        Raises:
            CannotStore: A value in the state cannot be stored. Nothing was written.
            StateChanged: The state was changed during the save.
            StepExists: The run has another checkpoint at that step.
            RunInUse: The run, or the checkpoint that the save would replace, belongs to another training. See
                `if_run_in_use` and `if_exists`.
            InsufficientSpace: Not enough bytes or inodes. The message has the required and the free space, and how much
                each possible action would free. See `StoreConfig.make_room`.
            MissingRanks: With `ranks`, other ranks did not join in time. The message names them.
            RankMismatch: With `ranks`, two processes have the same rank, or the ranks save different checkpoints.
            RankFailed: With `ranks`, the save failed on another rank.
            SaveFailed: Something else failed. After any of these errors nothing was published and every earlier
                checkpoint is intact.
            UnknownOutcome: It is not known whether the checkpoint was published, or whether it survives a power cut.
        """
        from ckstore.ops.save.options import SaveOptions

        options = SaveOptions(
            metrics=metrics,
            metadata=metadata,
            message=message,
            tags=tags,
            parent=parent,
            if_exists=if_exists,
            if_run_in_use=if_run_in_use,
            retries=retries,
            wait_for_space_s=wait_for_space_s,
            try_for_s=try_for_s,
        )
        _of_training(state, options)
        request = self._requested(run, step, options, progress, ranks)

        def save_once() -> CheckpointInfo:
            if ranks is not None:
                from ckstore.ranks.attempt import AsRank
                from ckstore.ranks.save import save_state

                return save_state(self._context, state, request, AsRank(ranks, self._run_of_all(run, ranks), step))
            from ckstore.ops.save.save import save

            try:
                return save(self._context, state, request())
            except StepExists as error:
                from ckstore.ranks.attempt import hint_for_single_save

                # In a job of several ranks, the usual cause is that each rank saves the same step by itself.
                error.hint = hint_for_single_save() or error.hint
                raise

        return self._log_warnings(save_once, on_failure, run, step)

    @api_call_in_memory
    @of_state
    def save_async(
        self,
        state: object,
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        unchanged: Select = None,
        max_in_flight: int = 1,
        when_busy: Literal["wait", "skip", "error"] = "wait",
        timeout_s: float = 600.0,
        stall_timeout_s: float = 120.0,
        nice: int = 0,
        after: object = None,
        on_failure: OnFailure = "raise",
    ) -> PendingSave:
        """Copy a state and save it in the background.

        When this call returns, the state may be changed. A separate process, the saver, does the work. The calling
        process does not access the filesystem of the store. Saves become visible in the order of the calls. The
        arguments work as in `save`. See docs/explanation/async.md.

        Args:
            state: As in `save`. It is copied once, to memory shared with the saver.
            step: As in `save`. The saver finds the next step.
            run: As in `save`.
            metrics: As in `save`.
            metadata: As in `save`.
            message: As in `save`.
            tags: As in `save`.
            parent: As in `save`.
            if_exists: As in `save`.
            if_run_in_use: As in `save`.
            retries: As in `save`. The saver retries from its copy.
            wait_for_space_s: As in `save`.
            try_for_s: As in `save`.
            unchanged: The tensors that have not changed since the previous `save_async` of the run. As with `select` of
                `load`, pass a function of a name, or globs, where a name also selects everything below it. The save
                reuses these tensors from that checkpoint and does not copy them. The caller must guarantee that they
                are unchanged. Each save compares only one chunk in 32. If another chunk has changed, it is saved with
                its old bytes.
            max_in_flight: Maximum number of unfinished saves, each with a copy of its state in memory.
            when_busy: The reaction when that maximum is reached. ``wait`` waits until an unfinished save ends, ``skip``
                skips this save (see `PendingSave.skipped`), and ``error`` raises an error.
            timeout_s: Maximum time that ``wait`` waits, in seconds.
            stall_timeout_s: A saver that sends no message and uses no processor time for this many seconds is
                killed, and the save that it had begun is abandoned. Another saver continues with the later saves.
            nice: Niceness of a saver that this call starts, 0 to 19. A higher number lowers its priority.
            after: A `torch.cuda.Event`. GPU tensors are copied after that event, as work of the current stream, and
                this call does not wait for the copy. Later work of the current stream follows the copy. Another stream
                that changes the state must wait for the current stream. Without `after`, this call waits for all work
                queued on the devices and for the copy.
            on_failure: As in `save`. With ``warn``, a storage failure is logged. `PendingSave.result` raises it, but
                later calls do not.

        Returns:
            The unfinished save. `PendingSave.result` waits for its end.

        Raises:
            BadInput: `unchanged` selects nothing, or another argument is invalid.
            CannotStore: A value in the state cannot be stored.
            StateChanged: The state was changed while it was being copied.
            InUse: `max_in_flight` saves are unfinished, and `when_busy` is ``error`` or `timeout_s` has passed.
            InsufficientSpace: There is no memory for the copy.
            SaveFailed: No saver can be started.
            CkstoreError: An earlier save failed, and its `result` was not read.
        """
        from ckstore.model.settings.patience import check_on_failure
        from ckstore.ops.notices import tell_not_durable
        from ckstore.ops.save.options import SaveOptions, request_of
        from ckstore.saver.client.queue import SaverLimits
        from ckstore.saver.client.unchanged_storages import UnchangedNames

        check_on_failure(on_failure)
        options = SaveOptions(
            metrics=metrics,
            metadata=metadata,
            message=message,
            tags=tags,
            parent=parent,
            if_exists=if_exists,
            if_run_in_use=if_run_in_use,
            retries=retries,
            wait_for_space_s=wait_for_space_s,
            try_for_s=try_for_s,
        )
        _of_training(state, options)
        try:
            limits = SaverLimits(max_in_flight, when_busy, timeout_s, stall_timeout_s, nice, after)
            limits.check()
            ref = "" if parent is None or isinstance(parent, CheckpointInfo) else str(parent)
            request = request_of(self._context, self._run_named(run), step, options, None, ref)
            self._context.check_accepts_writes()
            selects = None
            if unchanged is not None:
                from ckstore.ops.read.load import as_filter

                selects = as_filter(unchanged, "unchanged")
            # This process warns, since warnings of the saver are not shown.
            tell_not_durable(self._context.not_durable_because, self._context.settings)
            named = UnchangedNames(selects, self._context.settings.chunk_bytes)
            submit = self.background._submit  # noqa: SLF001 - its own
            return submit(state, request, ref, limits, named, on_failure=on_failure)
        except BaseException:
            self.background._call_failed(self._effective_run(run))  # noqa: SLF001 - its own
            raise

    @api_call_in_memory
    def write_metrics(self, path: str | os.PathLike[str], labels: Mapping[str, str] | None = None) -> None:
        """Write the metrics of the saves of this handle to a file, in the OpenMetrics text format.

        The file is replaced atomically, so a reader such as the textfile collector of Prometheus' node exporter never
        sees a partial file. The store is not accessed.

        Args:
            path: The file. Its directory must exist.
            labels: Labels added to each sample, for example to distinguish several trainers. Each sample also has
                ``store``, the directory of the store.

        Raises:
            BadInput: A label is invalid.
        """
        from ckstore.ops.report.metrics import write_metrics

        write_metrics(self._context, self.path, expanded(path), labels or {})

    @overload
    def commit(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        times: bool = False,
        allow_incomplete: bool = False,
        on_failure: Literal["raise"] = "raise",
    ) -> CheckpointInfo: ...

    @overload
    def commit(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        times: bool = False,
        allow_incomplete: bool = False,
        on_failure: OnFailure,
    ) -> CheckpointInfo | NotSaved: ...

    @api_call
    @of_state
    def commit(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        step: int | None = None,
        run: str | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        tags: Iterable[str] = (),
        parent: RefLike | None = None,
        if_exists: IfExists = "error",
        if_run_in_use: IfRunInUse | None = None,
        retries: int | None = None,
        wait_for_space_s: float | None = None,
        try_for_s: float | None = None,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
        times: bool = False,
        allow_incomplete: bool = False,
        on_failure: OnFailure = "raise",
    ) -> CheckpointInfo | NotSaved:
        """Commit files as they are: a checkpoint directory of any framework, or any other files.

        `checkout` restores them byte for byte, with their permission bits. Safetensors and torch files are split at
        tensor boundaries without unpickling. Each tensor is stored once, even if it also occurs in other files or in
        saved states. The tensors of such files can be listed, loaded, sliced and compared by name.

        Args:
            paths: One directory, whose content is stored at the root, or several paths, stored under their names.
                Symlinks below them are stored as symlinks and not followed. Without a step, several directories with
                names of checkpoints are refused, and so is a directory that contains such directories.
            step: Step number. If None, the number in the name of a single path (``checkpoint-500``, ``step-500``,
                ``global_step500``, ``iter_0000500``, ``epoch=1-step=500``), otherwise one more than the highest of the
                run.
            run: Name of the run. If None, the run of `open`, otherwise ``main``.
            metrics: As in `save`.
            metadata: As in `save`.
            message: As in `save`.
            tags: As in `save`.
            parent: As in `save`.
            if_exists: As in `save`.
            if_run_in_use: As in `save`.
            retries: As in `save`.
            wait_for_space_s: As in `save`.
            try_for_s: As in `save`.
            progress: As in `save`.
            ranks: As in `save`.
            times: Also store modification times.
            allow_incomplete: Accept files that are marked as incomplete by their writer.
            on_failure: As in `save`.

        Returns:
            The committed checkpoint. `warnings` names files that seem to have a known format but do not.

        Raises:
            BadInput: A path is missing, empty, unreadable or incomplete, or overlaps with the store, or the paths hold
                several checkpoints.
            CannotStore: The paths contain a socket, a pipe, a device or a name that cannot be stored.
            StateChanged: A file was changed while it was read.
            StepExists: The run has another checkpoint at that step.
            RunInUse: The checkpoint that the commit would replace belongs to another training. See `save`.
            InsufficientSpace: Not enough bytes or inodes. The message has the required and the free space.
            MissingRanks: With `ranks`, other ranks did not join in time. The message names them.
            RankMismatch: With `ranks`, two processes have the same rank, or the ranks commit different checkpoints.
            RankFailed: With `ranks`, the commit failed on another rank.
            SaveFailed: Something else failed. After any of these errors nothing was published.
            UnknownOutcome: It is not known whether the checkpoint was published, or whether it survives a power cut.
        """
        from ckstore.ops.save.commit import CommitOptions, commit
        from ckstore.ops.save.options import SaveOptions

        files = [expanded(path) for path in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]

        options = SaveOptions(
            metrics=metrics,
            metadata=metadata,
            message=message,
            tags=tags,
            parent=parent,
            if_exists=if_exists,
            if_run_in_use=if_run_in_use,
            retries=retries,
            wait_for_space_s=wait_for_space_s,
            try_for_s=try_for_s,
        )
        request = self._requested(run, step, options, progress, ranks)
        how = CommitOptions(times, allow_incomplete)

        def commit_once() -> CheckpointInfo:
            if ranks is not None:
                from ckstore.ranks.attempt import AsRank
                from ckstore.ranks.save import commit_files

                as_rank = AsRank(ranks, self._run_of_all(run, ranks), step)
                return commit_files(self._context, files, request, how, as_rank)
            return commit(self._context, files, request(), how)

        return self._log_warnings(commit_once, on_failure, run, step)

    @api_call
    def checkout(
        self,
        ref: RefLike,
        destination: str | os.PathLike[str],
        *,
        link: LinkMode = "auto",
        only: str | Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> CheckoutReport:
        """Write the files of a committed checkpoint, or the safetensors export of a saved state.

        The files are written to a directory next to `destination`, checked byte by byte, made durable, and appear by
        one rename.

        Args:
            ref: Which checkpoint.
            destination: A directory that does not exist yet, or is empty.
            link: ``auto`` shares blocks with the store if the filesystem supports it (reflink), and otherwise copies.
                ``reflink`` fails if no block can be shared, and copies only small files and compacted data. ``copy``
                always copies. With ``hardlink``, each file that consists of one blob becomes a read-only hard link to
                this blob. Writing to such a file, which root can do, damages every checkpoint that uses the blob.
            only: Globs of the paths to write, in which ``*`` also matches slashes. If None, all.
            progress: Called with the number of bytes done and the total.

        Raises:
            NoSuchRef: There is no such checkpoint, or no file matches `only`.
            BadInput: The destination is not empty, its parent does not exist, or `link` is not supported, such as
                ``reflink`` for a saved state.
            UnsafePlace: `link` is ``reflink``, and no block can be shared. Nothing was written.
            DamagedBlob: Some data is damaged or missing. Nothing was written.
            InsufficientSpace: The message has the required and the free space. Nothing was written.
        """
        from ckstore.ops.read.checkout import checkout

        globs = None if only is None else (only,) if isinstance(only, str) else tuple(only)
        return checkout(self._context, ref, expanded(destination), link=link, only=globs, progress=progress)

    @api_call
    @of_state
    def export(
        self,
        ref: RefLike,
        destination: str | os.PathLike[str],
        *,
        format: ExportFormat = "safetensors",  # noqa: A002 - the word of the command line
        max_shard_bytes: int | str = 50 * 10**9,
        select: Select = None,
        strip_prefix: bool = False,
        add: Sequence[str | os.PathLike[str]] = (),
        sums: bool | Literal["model-signing"] = False,
        progress: Progress | None = None,
    ) -> ExportReport:
        """Export a checkpoint to files for other programs.

        A state that many ranks saved is consolidated. The files are written next to `destination`, checked byte by
        byte, made durable, read back, and appear by one rename. An export uses at most 256 MiB of memory, independent
        of the size of the state.

        Args:
            ref: Which checkpoint. As in `load`, ``latest-valid`` skips damaged checkpoints.
            destination: A directory that does not exist yet, or is empty. For ``torch``, a file that does not exist.
            format: ``safetensors`` writes the files of `export_safetensors`. ``torch`` is one file that `torch.load`
                reads, with the structure of the state, ties and strides. ``dcp`` is a directory that
                `torch.distributed.checkpoint` loads, on any number of ranks. ``pretrained`` and ``peft`` are
                directories that ``from_pretrained`` or ``PeftModel.from_pretrained`` opens. They are made from a saved
                state dict or from committed files of a trainer, and omit data that only a resume needs.
            max_shard_bytes: As in `export_safetensors`. Not for ``torch`` and ``peft``.
            select: As in `load`. For ``pretrained`` and ``peft``, it names the state dict.
            strip_prefix: As in `export_safetensors`. Only for ``safetensors``.
            add: For ``pretrained`` and ``peft``, files to add to the weights, such as ``config.json``, or directories.
                All files of a directory are added, except weights.
            sums: Also write the SHA-256 of every file, in the format of ``sha256sum -c``, and the origin of the export,
                for `verify_export`. A directory gets ``SHA256SUMS`` and ``ckstore-export.json``. A torch file gets
                ``FILE.sha256`` and ``FILE.ckstore-export.json`` in its directory. With ``"model-signing"``, a directory
                also gets ``model.intoto.json``, the unsigned statement of OpenSSF's model-signing about these files.
            progress: Called periodically with the number of bytes done and the total.

        Raises:
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint, or `select` matches nothing.
            BadInput: The destination exists and is not an empty directory, two values would have the same name, or the
                format cannot store a value. The message names the value.
            DamagedBlob: Some data is damaged or missing.
            InsufficientSpace: The message has the required and the free space. After any of these errors no files
                remain.
        """
        from ckstore.ops.read.export_formats import export

        return export(
            self._context,
            ref,
            expanded(destination),
            format=format,
            max_shard_bytes=max_shard_bytes,
            select=select,
            strip_prefix=strip_prefix,
            add=add,
            sums=sums,
            progress=progress,
        )

    @api_call
    @of_state
    def export_safetensors(
        self,
        ref: RefLike,
        destination: str | os.PathLike[str],
        *,
        max_shard_bytes: int | str = 50 * 10**9,
        select: Select = None,
        strip_prefix: bool = False,
        sums: bool | Literal["model-signing"] = False,
        progress: Progress | None = None,
    ) -> ExportReport:
        """Write the tensors of a saved state as ``model.safetensors``, or as shards with an index as on the HF Hub.

        The files are written next to `destination`, checked byte by byte, made durable, read back, and appear by one
        rename. Names are the paths in the state with plain dots. Only the first of several tied tensors is written, and
        the metadata lists the omitted names. Values that safetensors cannot store are written to ``state.json``, and
        the report lists them.

        Args:
            ref: Which checkpoint. As in `load`, ``latest-valid`` skips damaged checkpoints.
            destination: A directory that does not exist yet, or is empty.
            max_shard_bytes: Maximum bytes of tensors in one file, as a number, or a size such as ``5GB`` (10^9) or
                ``5GiB``. A larger tensor gets its own file.
            select: As in `load`.
            strip_prefix: Remove the path given by `select` from the names of tensors. With ``select="model"``,
                ``model.layers.0.weight`` becomes ``layers.0.weight``.
            sums: As in `export`.
            progress: Called periodically with the number of bytes done and the total.

        Raises:
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint, or `select` matches nothing.
            BadInput: The destination is not empty, two tensors would have the same name, there is no prefix, or a value
                that safetensors cannot store is too large for a JSON file.
            DamagedBlob: Some data is damaged or missing.
            InsufficientSpace: The message has the required and the free space. After any of these errors no files
                remain.
        """
        from ckstore.ops.read.export_formats import export

        return export(
            self._context,
            ref,
            expanded(destination),
            format="safetensors",
            max_shard_bytes=max_shard_bytes,
            select=select,
            strip_prefix=strip_prefix,
            sums=sums,
            progress=progress,
        )

    @staticmethod
    def verify_export(export: str | os.PathLike[str], *, progress: Progress | None = None) -> ExportCheck:
        """Read every file of an export that was made with ``sums=True``, and compare it with its SHA-256.

        No store is needed, so a recipient of the files can call this function. The report names the files that differ,
        the tensors in them, and the exported checkpoint. Files that were added later are not checked.

        Args:
            export: The directory of the export, or its torch file.
            progress: Called from time to time with the number of bytes read and the total.

        Raises:
            BadInput: The export has no checksums, or the checksums name a file outside the export.
            DamagedBlob: The record of the files cannot be read.
            NewerFormat: A newer ckstore made the export.
        """
        from ckstore.ops.read.export_check import verify_export

        return verify_export(expanded(export), progress)

    @api_call
    @of_state
    def load(
        self,
        ref: RefLike = "latest",
        device: object = "cpu",
        *,
        select: Select = None,
        mmap: bool = False,
        verify: bool = True,
        progress: Progress | None = None,
        rank: int | None = None,
        file: str | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """Return a state, identical in bits, dtype, shape and structure.

        Parameters are returned as tensors. If a blob is damaged or missing and a remote of the store has it, the load
        downloads the blob and repairs the store, with a `CkstoreWarning`. If the store cannot be written, the load only
        uses the downloaded bytes.

        Args:
            ref: Which checkpoint. ``latest-valid`` is the newest whole checkpoint. Newer checkpoints that are damaged
                are marked and skipped with a `CkstoreWarning` that describes the damage. Checkpoints that another
                process has locked for longer than 10 s are also skipped (see also `warnings`).
            device: The target device of tensors, in the form of ``map_location`` of `torch.load`. It is a device, a
                dict from locations to devices, or a function of a storage and its location. The location of every
                tensor is ``"cpu"``, since devices are not stored.
            select: Glob, globs, or a function of the name. Only matching values are loaded. Other values are omitted
                from dicts, and replaced by None in lists.
            mmap: Map the blobs copy-on-write instead of reading them. Tensors share the page cache until they are
                written to.
            verify: Check every byte against its digest. With `mmap`, this call reads all data once. With
                ``verify=False``, a mapped tensor is never checked.
            progress: Called periodically with the number of bytes read and the total.
            rank: For a checkpoint saved with ``save(ranks=…)``, the rank whose state is loaded. `select` then applies
                to the names in that state. If None, the result is a dict of rank -> state.
            file: For a checkpoint of files, the path of a file with a state, such as ``optimizer.pt``. Its state is
                loaded as by ``torch.load(weights_only=True)``. Its pickle is read but never executed. If None, only the
                tensors of all files are loaded, as a dict of path -> name -> tensor. Names are flat
                (``state[0].step``). All other values, such as ``param_groups`` of an optimizer, and files without
                tensors are left out. To resume, pass the file, ``load(500, file="optimizer.pt")``, or write all files
                with `checkout`.
            max_bytes: Refuse a larger state, before memory is allocated. Use this for checkpoints from people you do
                not trust, since a small checkpoint can refer to one blob many times.

        Raises:
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint, or the checkpoint has no such file.
            NoWholeCheckpoint: The newest checkpoint was requested, and no existing one is whole.
            CannotLoad: The file holds no state, or values that cannot be loaded. The error has the paths of all such
                values.
            DamagedBlob: Data is damaged or missing, and no remote has it. The message names the tensor and the answer
                of each remote.
            InsufficientSpace: The state does not fit into memory, or is larger than `max_bytes`.
        """
        from ckstore.ops.read.load import load

        part = None
        if rank is not None:
            from ckstore.ranks.own_state import StateOfRank

            part = StateOfRank(rank)
        return load(
            self._context,
            ref,
            location=device,
            select=select,
            mmap=mmap,
            verify=verify,
            progress=progress,
            part=part,
            file=file,
            max_bytes=max_bytes,
        )

    @api_call
    @of_state
    def load_into(
        self,
        target: Any,
        ref: RefLike = "latest",
        *,
        strict: bool | str | Sequence[str] = True,
        select: Select = None,
        rename: Mapping[str, str] | None = None,
        cast: bool = False,
        assign: bool = False,
        verify: bool = True,
        since: LoadReport | RefLike | None = None,
        progress: Progress | None = None,
        file: str | None = None,
    ) -> LoadReport:
        """Read a state into `target`, without a second copy in memory.

        `target` is a dict of modules, optimizers, other objects with ``load_state_dict`` and plain values. It may also
        be a single such object, or a state dict. Tensors are read directly into their existing memory. Then
        ``load_state_dict`` of the objects is called. Names, shapes and dtypes of tensors, modules and optimizers are
        compared before the target is changed. If a blob is damaged, the target holds a part of the new state. With
        ``latest-valid``, the previous checkpoint is then read into the target.

        Args:
            target: The object to load into.
            ref: Which checkpoint, as in `load`.
            strict: If False, load the values that fit, leave the others unchanged and report them. If globs, as in
                `select`, the matching parts must fit, and other parts may differ, as in ``strict="model"``. Another
                dtype (without `cast`), tensors on the meta device (without `assign`), and a module without a matching
                name are always refused.
            select: As in `load`, by the names in the checkpoint. The rest of the target remains unchanged. Objects with
                ``load_state_dict``, except modules, are loaded completely or not at all.
            rename: Prefixes of the checkpoint's names -> their replacements, as in
                ``{"_orig_mod.": "", "module.": ""}``.
                They apply to the keys in the state of a module and to the keys of tensors in a dict. The longest
                matching prefix is replaced. Matching continues on the rest of the name, using each rule once. The
                replacement of ``""`` is added in front of names that match no other prefix. Prefixes that begin with a
                dot are replaced at any position, as in ``{"._orig_mod.": "."}``.
            cast: Convert tensors to their dtype in the target, if ``torch.can_cast`` allows it.
            assign: Allocate CPU memory for tensors of the target that are on the meta device, and replace tensors with
                another structure. Parameters remain parameters, with their ``requires_grad``, and tied ones remain
                tied.
            verify: As in `load`.
            since: The current content of the target, as the report of the previous load or as a checkpoint. Only
                differences from this content are read and written, so later changes of the target are kept. If None,
                everything is read and written. A report is valid until a later load begins to change the target. The
                report of a load with ``verify=False`` is valid only for other loads with ``verify=False``. If `since`
                is a checkpoint, pass None after a load that failed.
            progress: Called periodically with the number of bytes read and the total.
            file: For a checkpoint of files, the path of the file to load, as in `load`.

        Raises:
            CannotLoad: `file` holds no state, or values that cannot be loaded.
            DoesNotFit: Names (with `strict`), shapes or dtypes differ. The target is unchanged. The message lists at
                most twenty names of each kind. The attributes of the error list all names.
            BadInput: `rename` makes two names equal, or `select` selects a part of an object that is loaded completely.
                The target is unchanged. It is also raised if ``load_state_dict`` of an object raised. In this case, the
                objects before it have been loaded.
            DamagedBlob: Data is damaged or missing. The message names the tensor.
        """
        from ckstore.ops.read.target_load import LoadIntoRequest, load_into

        request = LoadIntoRequest(
            strict=strict,
            select=select,
            rename=rename,
            cast=cast,
            assign=assign,
            verify=verify,
            since=since,
            progress=progress,
            file=file,
        )
        return load_into(self._context, ref, target, request)

    @api_call
    def open_checkpoint(self, ref: RefLike = "latest", *, max_bytes: int | None = None) -> OpenCheckpoint:
        """Open a checkpoint for lazy reading, as a context manager.

        An open checkpoint is not deleted.

        Args:
            ref: Which checkpoint.
            max_bytes: Refuse each larger read (a tensor, a slice or a load), before memory is allocated. As with
                `load`, use this for checkpoints from people you do not trust.

        Raises:
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
            BadInput: `ref` is not a valid ref.
            DamagedBlob: The manifest of the checkpoint is damaged.
        """
        from ckstore.ops.read.open_checkpoint import open_ref

        return open_ref(self._context, ref, max_bytes, self)

    @api_call
    def info(self, ref: RefLike = "latest") -> CheckpointInfo:
        """Return the information that the store has about a checkpoint.

        Raises:
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
        """
        from ckstore.objects.remote.remote_only import with_remotes
        from ckstore.ops.refs.find import find
        from ckstore.ops.verify.last_readings import with_oldest_reading

        return with_remotes(self._context.layout, with_oldest_reading(self._context, find(self._context, ref)))

    @api_call
    def latest(self, run: str | None = None, *, valid: bool = False) -> CheckpointInfo | None:
        """Return the newest checkpoint of a run in the order of commits, or None if the run has no checkpoint.

        With `valid`, the checkpoint is complete, its blobs have the expected sizes and times, and no read or
        verification has found damage in it. Newer checkpoints that do not meet these conditions are skipped with a
        `CkstoreWarning`. The data is not read.

        Args:
            run: Name of the run. If None, the run of `open`, otherwise the only run.
            valid: See above.

        Raises:
            NoWholeCheckpoint: Directories of checkpoints exist, and none of them is whole. This is an error and not
                None, so that no training restarts at step 1. If an older checkpoint is whole, it is returned, and a
                `CkstoreWarning` names the newer directories.
            AmbiguousRef: No run is given, and the store has several. ``checkpoints(newest=1)`` covers all of them.
            InUse: An unfinished save is replacing a checkpoint, and no other one exists.
            BadInput: `run` is not a valid run name.
        """
        from ckstore.ops.refs.find import latest

        return latest(self._context, run, valid=valid)

    @api_call
    def best(
        self, metric: str, run: str | None = None, *, mode: Literal["min", "max"] | None = None
    ) -> CheckpointInfo | None:
        """Return the checkpoint of a run with the best value of a metric, the newest of equal ones, or None.

        The corresponding refs are ``RUN@best:METRIC``, ``RUN@best:METRIC:min`` and ``RUN@best:METRIC:max``. A
        checkpoint that is marked as damaged is skipped if another checkpoint has the metric.

        Args:
            metric: The name of the metric, as given to `save` or `annotate`. A NaN is never the best value.
            run: Name of the run. If None, the run of `open`, otherwise the only run.
            mode: With ``min`` the smallest number is best, with ``max`` the greatest. If None, the name decides:
                ``min`` for a loss or an error, ``max`` for an accuracy or another score.

        Raises:
            AmbiguousRef: No run is given, and the store has several.
            BadInput: `metric`, `run` or `mode` is invalid, or `mode` is missing and the name does not imply one.
        """
        from ckstore.ops.refs.find import best_by

        return best_by(self._context, metric, run, mode)

    @api_call
    def checkpoints(
        self, run: str | None = None, *, newest: int | None = None, superseded: bool = False
    ) -> list[CheckpointInfo]:
        """Return all complete checkpoints of a run or of all runs in the order of their commits, oldest first.

        If no `run` is given, the run of `open` is used, or all runs if the handle has no run. `newest` limits the
        result to this number of newest checkpoints. The cost then hardly depends on the number of existing checkpoints.
        `superseded` adds checkpoints whose step has a newer checkpoint. With `newest`, or if nothing is returned, a
        `CkstoreWarning` names newer directories that are not whole.

        Raises:
            BadInput: `newest` is below 1, or `run` is not a valid run name.
        """
        from ckstore.ops.refs.listing import infos, tell_torn

        if newest is not None and not (is_number(newest) and newest >= 1):
            raise BadInput(f"newest must be a number of checkpoints, at least 1, got {newest!r}")
        torn: set[CheckpointKey] = set()
        wanted = self.run if run is None else run
        found = infos(self._context, wanted, newest=newest, superseded=superseded, torn=torn)
        if newest is not None or not found:  # the caller wants the newest, or the result is empty
            tell_torn(self._context, found[-1] if found else None, torn)
        return BriefList(found)

    @api_call
    def runs(self) -> list[RunSummary]:
        """Return all runs that have a complete checkpoint, in the order of their newest commits, oldest first.

        A handle that is bound to a run also returns all runs.

        Raises:
            CkstoreError: A directory of the store cannot be read.
        """
        from ckstore.ops.refs.listing import run_summaries

        return BriefList(run_summaries(self._context))

    @api_call
    def follow(
        self,
        run: str | None = None,
        *,
        after: RefLike | None = None,
        timeout_s: float | None = None,
        remote: RemoteLike | None = None,
        poll_s: float | None = None,
        lacking: str | Iterable[str] | None = None,
        newest_first: bool = False,
        attempts: int | None = 3,
    ) -> Follower:
        """Yield each checkpoint of a run as it becomes durable, for evaluators and processes that load new weights.

        Existing checkpoints are yielded first, in the order of their commits, then each new one. The cost of a check
        for new checkpoints does not depend on the number of existing ones. A checkpoint that is dropped before its turn
        is not yielded. With `lacking`, a warning names such a checkpoint. For each yielded checkpoint,
        ``load_into(target, info, since=report)`` reads only differences from the previous checkpoint. The result is an
        iterator, and holds a descriptor until it ends, is closed (``with`` closes it), or is freed.

        With `lacking`, only checkpoints without that metric are yielded, each to only one of the evaluators in all
        processes and hosts that use the store. The evaluator adds the metric (`annotate`) before it requests the next
        checkpoint. If the evaluator fails or is killed, another evaluator, or the same one after a restart, gets the
        checkpoint. Rules and `delete` do not remove the checkpoint during the evaluation, for at most
        `StoreConfig.evaluation_patience_s`.

        Args:
            run: Name of the run, which need not exist yet. If None, the run of `open`, otherwise the only run,
                otherwise ``main``.
            after: Yield only checkpoints committed after this one. ``latest`` yields only new ones. A `CheckpointInfo`
                may name a checkpoint that no longer exists.
            timeout_s: End if there was no new checkpoint for this many seconds. If None, continue until closed.
            remote: Also yield new checkpoints of this remote, or of the store in this directory. They are listed
                locally, as with `clone`, and loads download the data they read. If None, only local checkpoints are
                yielded, or only checkpoints of the remote if the store was opened by a URL.
            poll_s: Interval of checks for new checkpoints of `remote`, in seconds. A check that finds nothing new
                makes one request. If None, 5.
            lacking: Yield only checkpoints that lack this metric, or at least one of these metrics. A checkpoint has
                only one evaluation for a metric at a time.
            newest_first: Yield the newest checkpoint that lacks the metric first, not the oldest.
            attempts: After this number of evaluations in a row that ended without the metric, in any process, a
                checkpoint is skipped, and a warning names it. If None, it is never skipped.

        Raises:
            AmbiguousRef: No run is given, and the store has several.
            NoSuchRef: `after` names no checkpoint.
            BadInput: An argument is invalid, needs another argument, or `lacking` is given for a remote, which does not
                record evaluators of other stores.
            ReadOnlyStore: `lacking` is given, and the store was opened for reading only.
            UnsafePlace: `lacking` is given, and files cannot be locked on the filesystem of the store.
            NoSuchRemote: There is no remote of that name, or another program removed all objects of the remote. The
                iteration also raises this.
        """
        from ckstore.ops.refs.follow import follow

        context = self._listing or self._context
        of_remote = remote is not None or self._listing is not None
        if poll_s is not None and not of_remote:
            raise BadInput(
                "poll_s= needs remote=", hint="without remote=, follow yields new checkpoints within a second"
            )
        if lacking is not None and of_remote:
            raise BadInput(
                "lacking= needs a store on a filesystem: a remote does not record evaluators of other stores",
                hint="follow without lacking=, and skip checkpoints that have the metric in info.metrics",
            )
        news = self._news(run, remote, poll_s) if of_remote else None
        return follow(
            context, run, after, timeout_s, news, lacking=lacking, newest_first=newest_first, attempts=attempts
        )

    @api_call
    def publish(
        self,
        run: str | None,
        directory: str | os.PathLike[str],
        *,
        format: Literal["sglang"] = "sglang",  # noqa: A002 - the word of the command line
        ref: str = "latest",
        select: Select = None,
        add: Sequence[str | os.PathLike[str]] = (),
        dtype: WeightDtype | None = None,
        difference: DifferenceForm = "overwrite",
        full_every: int = 50,
        full_above: float = 0.5,
        keep_full: int = 2,
        timeout_s: float | None = None,
        remote: RemoteLike | None = None,
        poll_s: float | None = None,
    ) -> WeightPublisher:
        """Publish the weights of a run as it grows, for engines that serve them, and yield each published version.

        Versions are directories ``weight_v000001``, ``weight_v000002`` and so on, which SGLang's ``/pull_weights``
        reads. The newest version has the weights of the newest checkpoint, even after the run went back to an earlier
        step. A checkpoint is not published if a newer checkpoint appears before its turn. A version has either all
        weights, or only the differences from the previous version. It has all weights if it is the first version, if
        `full_every` requires it, if the differences are too large or cannot be computed, or if the run no longer
        continues the published step. Each version is durable when it appears. The checkpoint of a version remains open
        until the next version, so its data is kept.

        Args:
            run: Name of the run, which need not exist yet. If None, as in `follow`.
            directory: Where to publish. It is created if it is missing. Only one process can publish to it.
            format: The layout of the versions.
            ref: The checkpoint of the run to publish, such as ``best:reward``.
            select: The name of the state dict in the saved state, such as ``model``. If None, the whole state is the
                state dict.
            add: Files to add to each version with all weights, such as ``config.json`` and the tokenizer, or a
                directory with them. Weights in this directory are ignored. A checkpoint of committed files itself has
                such files. If one of the files changes, all weights are published again with the new files.
            dtype: The dtype of the published floating-point weights of 16 bits or more, ``float16``, ``bfloat16`` or
                ``float32``. The conversion is that of ``tensor.to(dtype)``. A change that the conversion removes is not
                published. If None, weights keep their dtype in the checkpoint. If the dtype differs from that of the
                newest version, all weights are published. Values that a dtype cannot represent are counted, and one
                `CkstoreWarning` for each version reports their number.
            difference: The form of differences. An engine can apply ``overwrite`` again after a crash, but not ``xor``.
            full_every: Publish all weights at least once in this number of versions.
            full_above: Publish all weights if the differences are larger than this share of the weights.
            keep_full: Number of versions with all weights to keep. Versions older than these are removed.
            timeout_s: End if there was nothing to publish for this many seconds. With 0, do not wait. If None, continue
                until closed.
            remote: Also publish new checkpoints of this remote, as in `follow`.
            poll_s: Interval of checks for another checkpoint, in seconds. If None, 1, or 5 for a remote.

        Raises:
            AmbiguousRef: No run is given, and the store has several.
            BadInput: An argument is invalid, or the directory has versions of another program or run. The iteration
                also raises this if the checkpoint is not the state dict of a model, or has a tensor that cannot be
                converted to `dtype`.
            InUse: Another process publishes to the directory.
            NoSuchRef: After `timeout_s`, `ref` names no checkpoint, although the run has some. The iteration raises
                this. Until then, it waits, with one `CkstoreWarning`.
            DamagedBlob, InsufficientSpace: The iteration raises these. The next call of ``next`` tries again. If the
                version has already appeared, that call returns the version.
            MissingExtra: `zstandard` is not installed, or `torch`, which `dtype` needs.
            NoSuchRemote: As in `follow`.
        """
        from ckstore.weights.publisher import PublishOptions, publish

        if format != "sglang":
            raise BadInput(f"format must be sglang, got {format!r}")
        is_listed = remote is not None or self._listing is not None
        if poll_s is None:
            poll_s = 5.0 if is_listed else 1.0
        options = PublishOptions(
            ref=ref,
            select=select,
            add=add,
            dtype=dtype,
            difference=difference,
            full_every=full_every,
            full_above=full_above,
            keep_full=keep_full,
            timeout_s=timeout_s,
            poll_s=poll_s,
        )
        path = expanded(directory)
        if is_listed:
            return publish(self._listing or self._context, run, path, options, self._news(run, remote, poll_s))
        return publish(self._context, run, path, options)

    def _news(self, run: str | None, remote: RemoteLike | None, poll_s: float | None) -> News:
        """Return the object that lists new checkpoints of `remote`, or of the remote that this store opened if None."""
        from ckstore.remote.remote_only.clone import POLL_S, News

        if poll_s is not None and not poll_s > 0:
            raise BadInput(f"poll_s must be a number of seconds above 0, got {poll_s!r}")
        context = self._listing or self._context
        wanted = self.run if run is None else run
        return News(context, "origin" if remote is None else remote, wanted, POLL_S if poll_s is None else poll_s)

    @api_call
    def delete(self, ref: RefLike, *, dry_run: bool = False, now: bool = False) -> None:
        """Delete a checkpoint durably.

        `undo` can restore the checkpoint for a day. Then its unshared data is freed. ``RUN@STEP`` also deletes a
        checkpoint that is not whole. This cannot be undone.

        Args:
            ref: Which checkpoint.
            dry_run: Delete nothing, and only raise the errors that deleting the checkpoint now would raise.
            now: Free the data immediately. The checkpoint cannot be restored (see `StoreConfig.undo_by_hand_s`).

        Raises:
            InUse: The checkpoint is open for reading, being evaluated (see `follow`), tagged or pinned.
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
        """
        from ckstore.ops.free.drop import delete

        delete(self._context, ref, dry_run=dry_run, now=now)

    @api_call
    @of_state
    def verify(
        self,
        ref: RefLike | None = None,
        *,
        sample: float | None = None,
        quick: bool = False,
        budget_s: float | None = None,
        rate_bytes_s: float | None = None,
        repair: bool = False,
        repair_from: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Read one checkpoint or all from the disk, bypassing the page cache, and compare all bytes with their digests.

        Directories that are not complete checkpoints also count as damage. Damage is recorded, so that ``latest-valid``
        skips a damaged checkpoint, and saving the checkpoint again replaces it. If a checkpoint is intact again, the
        record is removed. If all checkpoints are verified, the store itself is also checked: links, canonical names,
        unused blobs, the catalog, settings, tags and pins. Lost names and a wrong catalog are repaired. If the store
        was opened for reading, nothing is recorded or repaired.

        Bytes that are only on a remote are not read. The remote is listed instead.

        Args:
            ref: Which checkpoint. If None, all.
            sample: Read only this fraction of the blobs, above 0, the least recently read first. Missing blobs and
                wrong sizes are still detected. If None, all blobs are read.
            quick: Read no blobs, and check only sizes, times, links, names, the catalog and small files.
            budget_s: Read for this many seconds, the least recently read blobs first, and at least one blob. Repeated
                calls cover all blobs.
            rate_bytes_s: Maximum read rate, in bytes per second.
            repair: Move damaged blobs into ``quarantine/``, and replace them with intact copies from the store or one
                of its remotes.
            repair_from: One or several sources of intact copies of checkpoints or files. A source is another store, any
                directory, or the URL of a remote. Copies are read and compared before they are used. Implies `repair`.
            progress: Called from time to time with the number of bytes read and the total.

        Raises:
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
            BadInput: An option is out of range, two options exclude each other, or a directory cannot be read.
            RemoteError: A URL of `repair_from` has no remote, or the remote does not answer.
            SaveFailed: A repair was requested and the store cannot be written.
        """
        from ckstore.ops.verify.verify import Options, verify

        given = [repair_from] if isinstance(repair_from, (str, os.PathLike)) else repair_from
        paths = [os.fspath(path) for path in given]
        urls = [path for path in paths if "://" in path]
        sources = tuple(expanded(path) for path in paths if "://" not in path)
        repair = repair or bool(paths)
        copies = None
        if repair:
            self._context.check_writable()
            copies = _remote_copies(self._context, urls)
        options = Options(sample, budget_s, rate_bytes_s, quick, repair, sources, copies, progress)
        report = verify(self._context, ref, options)
        if not report.elsewhere:
            return report
        from ckstore.remote.remote_only.listing import look_elsewhere

        return look_elsewhere(self._context, report)

    @api_call
    def reindex(self, *, relink: bool = False, progress: Progress | None = None) -> ReindexReport:
        """Rebuild the catalog from the directories, keep the old one under another name, and report the results.

        All data of the catalog is in the directories, except the times at which saves last reread each blob. These
        times are lost. The old catalog becomes ``catalog.db.old-N``, and the three newest old catalogs are kept. Other
        processes may use the store during the rebuild. Lost names in ``blobs/`` are restored, and the next gc finds
        unreferenced blobs.

        Args:
            relink: Restore the hardlinks between files of the same blob, in a store that was copied without them. Each
                file that replaces others is read completely first.
            progress: Called from time to time with the number of bytes read and the total.

        Raises:
            InUse: Other processes keep the catalog locked.
            InsufficientSpace: There is no room for a second catalog. Nothing was changed.
            NewerFormat: A newer ckstore made the catalog. Nothing was changed.
            CatalogUnavailable: The catalog cannot be written. The checkpoints are unchanged, and the next opening
                continues the rebuild.
        """
        from ckstore.ops.open.reindex import reindex

        return reindex(self._context, relink=relink, progress=progress)

    @api_call
    def migrate(self) -> MigrateReport:
        """Convert a store that a draft of ckstore made.

        `open` also does this, except with ``recover=False``. The directory of each checkpoint is renamed after its id,
        and tags are rewritten. No data is copied. A directory without a readable manifest keeps its name.

        Raises:
            ReadOnlyStore: The store was opened for reading only.
            CkstoreError: The operating system refused an operation. Another call, or the next opening, continues the
                conversion.
        """
        from ckstore.ops.open.draft_conversion import convert

        self._context.check_writable()
        return convert(self._context, by_hand=True)

    @api_call
    def touch(self, ref: RefLike | Iterable[RefLike] | None = None, *, run: str | None = None) -> TouchReport:
        """Renew the modification and access times of checkpoints, so that a filesystem that purges by age keeps them.

        Saves do this for the blobs that they use, at most once a day. Use `touch` for older checkpoints and for
        checkpoints of finished runs, whose blobs no save uses any more. No data is read or written.

        Args:
            ref: One checkpoint or several. If None, all checkpoints of the store, or of the handle's run.
            run: All checkpoints of this run.

        Returns:
            The number of renewed files, and the files of other users, which cannot be renewed. A `CkstoreWarning` also
            names such files.

        Raises:
            BadInput: Refs and a run were given.
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint, or the run does not exist.
            ReadOnlyStore: The store was opened for reading only.
        """
        from ckstore.ops.touch import touch

        return touch(self._context, ref, None if run is None else check_run(run))

    @api_call
    @of_state
    def diff(
        self,
        before: RefLike,
        after: RefLike = "latest",
        *,
        values: bool = False,
        file: str | tuple[str | None, str | None] | None = None,
    ) -> Diff:
        """Return the tensors and other values that differ between two checkpoints.

        The names, shapes and pieces in the manifests are compared, and no data is read. With `values`, changed tensors
        of floating or complex numbers are read, one at a time, and the size of their differences is also reported.

        Args:
            before: The first checkpoint.
            after: The second.
            values: See above.
            file: Compare the content of a committed file, as `load` returns it. Pass one path, which applies to each
                checkpoint that has files, or a pair of paths for `before` and `after`. In a pair, pass None for a saved
                state.

        Raises:
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint, or the checkpoint has no such file.
            CannotLoad: A file holds no state, or values that cannot be loaded.
            DamagedBlob: A manifest, or with `values` a tensor, is damaged.
        """
        from ckstore.ops.read.diff import diff

        return diff(self._context, before, after, values=values, file=file)

    @api_call
    def du(self) -> Usage:
        """Return the disk usage of each checkpoint and the space that dropping it would free.

        No data is read.

        Raises:
            CkstoreError: A directory of the store cannot be read.
        """
        from ckstore.ops.report.usage import usage

        return usage(self._context)

    @api_call
    def metrics(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return metrics of the store and each run as OpenMetrics text.

        `write_metrics` covers saves of this handle.

        Args:
            path: A file that is atomically replaced with this text, for the textfile collector of node_exporter.

        Raises:
            BadInput: The file cannot be written.
        """
        from ckstore.ops.report.metrics import metrics
        from ckstore.remote.remote_report import mirror_metrics

        return metrics(self._context, None if path is None else expanded(path), mirror_metrics)

    @api_call
    def report(self, path: str | os.PathLike[str] | None = None) -> HtmlReport:
        """Return an HTML page about the store, which a notebook shows and which needs no network.

        The page shows the checkpoints of each run over time with their metrics, the space of each run, the checkpoints
        that each rule keeps, the changed tensors, and the findings of `doctor`. The store is not changed.

        Args:
            path: A file to write the page to. An existing file is replaced.

        Raises:
            BadInput: The file cannot be written.
        """
        from ckstore.ops.report.html import report
        from ckstore.saver.client.savers import savers_seen

        file = None if path is None else expanded(path)
        return report(self._context, file, _remote_checks(), savers_seen(str(self.path)))

    @api_call
    def events(self, since: str | float | timedelta | datetime | None = None, run: str | None = None) -> list[Event]:
        """Return the events of the store, the oldest first: saves, drops with their rule, damage and failures.

        The journal of events has a limited size and may be lost. No decision depends on it.

        Args:
            since: A duration such as ``1d`` or ``36h``, seconds, or a datetime with a time zone. If None, all events.
            run: Only events of this run. If None, of all runs.

        Raises:
            BadInput: `since` is invalid.
        """
        from ckstore.ops.events import events

        return BriefList(events(self._context, since=since, run=run))

    @api_call
    def why(self, digest: str) -> list[Use]:
        """Return the checkpoints, and the tensors in them, that use a blob or a piece, the oldest commit first.

        The result is empty for a blob of the store that no checkpoint uses. gc frees such blobs.

        Args:
            digest: The digest, or the first 6 or more of its hexadecimal digits.

        Raises:
            NoSuchRef: There is no such blob and no such piece.
            AmbiguousRef: Several blobs or pieces match.
            BadInput: `digest` is not a valid digest.
        """
        from ckstore.ops.report.blob_users import why

        return BriefList(why(self._context, digest))

    @api_call
    def push(
        self,
        ref: RefLike | Iterable[RefLike] | None = None,
        remote: RemoteLike | None = None,
        *,
        dry_run: bool = False,
        **options: Unpack[TransferOptions],
    ) -> TransferReport:
        """Push checkpoints to a remote, the newest first.

        Only blobs whose digests the remote lacks are sent. Metrics, tags, pins and annotations are also pushed. A
        repeated call continues an interrupted push. When this call returns, each checkpoint is whole on the remote,
        since the presence of every blob was checked after the manifest was written.

        Args:
            ref: Which checkpoint, or several. If None, the newest, unless an option selects others.
            remote: Name of a remote. If None, the only remote.
            dry_run: Change nothing, and report the data that would be sent. A dry run computes no differences, so a
                push with `push_deltas` may send less.
            options: The fields of `TransferOptions`, which are run, all, tagged, bwlimit and progress.

        Raises:
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint.
            BadInput: The remote uses another hash, the remote is a store, or the arguments contradict each other.
            DamagedBlob: Local data is damaged and was not sent.
            RemoteError: There is no such remote, or it rejects an upload.
        """
        from ckstore.remote.choice import TransferOptions
        from ckstore.remote.transfer import push

        check_options(self.push, options, TransferOptions)
        return push(self._context, ref, remote, options, dry_run=dry_run)

    @api_call
    def pull(
        self,
        ref: RefLike | Iterable[RefLike] | None = None,
        remote: RemoteLike | None = None,
        *,
        if_exists: IfExists = "error",
        dry_run: bool = False,
        **options: Unpack[TransferOptions],
    ) -> TransferReport:
        """Pull checkpoints of a remote.

        Only blobs whose digests the store lacks are downloaded. Each blob is compared with its digest before it gets
        its name. A checkpoint appears atomically, whole and durable, with the same id and the same position in the
        order of commits. Its metrics, annotations, tags and pins are also pulled, but local tags do not move. A
        repeated call continues an interrupted pull, unless gc ran in the meantime.

        Args:
            ref: Which checkpoint of the remote, or several, by a step, ``latest``, a tag or digits of an id. If None,
                the newest of the remote, unless an option selects others.
            remote: As in `push`.
            if_exists: As in `save`, for local checkpoints of the same run and step. ``replace`` also drops local
                checkpoints that are newer than the pulled one, and the `warnings` of the report list these. This can be
                undone for `StoreConfig.undo_by_rule_s`. If
                a tag, a pin or a reader keeps a newer checkpoint, the step still names this checkpoint, and the
                `warnings` of the report list it.
            dry_run: Change nothing, and report the data that would be downloaded. The `warnings` of the report list the
                checkpoints that would be refused, replaced or kept because of `if_exists`.
            options: The fields of `TransferOptions`, which are run, all, tagged, bwlimit and progress.

        Raises:
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint of the remote.
            BadInput: The arguments contradict each other.
            StepExists: Another local checkpoint has that run and step.
            InUse: Another process has the run locked.
            InsufficientSpace: The message has the required and the free space.
            RemoteError: There is no such remote, or data on the remote is missing or damaged.
            SaveFailed: Something else failed. After any of these errors the checkpoint does not exist locally, and
                every other checkpoint is intact.
            UnknownOutcome: It is not known whether the checkpoint was published, or whether it survives a power cut.
        """
        from ckstore.remote.choice import TransferOptions
        from ckstore.remote.transfer import pull

        check_options(self.pull, options, TransferOptions)
        return pull(self._context, ref, remote, if_exists, options, dry_run=dry_run)

    @api_call
    def evict(
        self,
        ref: RefLike | Iterable[RefLike] | None = None,
        remote: RemoteLike | None = None,
        *,
        rule: bool = False,
        dry_run: bool = False,
        **options: Unpack[ChoiceOptions],
    ) -> EvictReport:
        """Free the local data of checkpoints that are stored on a remote.

        Loads then download the data they read. The checkpoints remain listed. Before any data is freed, every blob is
        confirmed to be on the remote. A blob is confirmed if this store sent it to a service that refuses damaged
        uploads. Otherwise, the blob is read back now and compared with its digest. In both cases, the remote must still
        list the blob. `pull` restores the local data.

        Args:
            ref: Which checkpoint, or several, unless an option selects them.
            remote: As in `push`.
            rule: Evict the checkpoints that `StoreConfig.keep_local` does not keep locally, as after each push of the
                mirror.
            dry_run: Change nothing, read nothing back, and report the data that would be freed.
            options: The fields of `ChoiceOptions`, which are run, all and tagged.

        Returns:
            The freed data. A checkpoint that keeps its data is in `skipped`, with the reason: it is not on the remote,
            it is open, or the remote has other bytes.

        Raises:
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint.
            BadInput: Neither a ref nor a rule is given, or both are given.
            RemoteError: There is no such remote, or it does not answer.
            SaveFailed: The store cannot be written.
        """
        from ckstore.remote.choice import ChoiceOptions
        from ckstore.remote.transfer import evict

        check_options(self.evict, options, ChoiceOptions)
        return evict(self._context, ref, remote, options, rule=rule, dry_run=dry_run)

    @api_call
    def prune(
        self,
        policy: RetentionPolicy | RetentionPlan | None = None,
        run: str | None = None,
        *,
        dry_run: bool = False,
        exclusive: bool = False,
        now: bool = False,
    ) -> GcReport:
        """Drop the checkpoints that a policy does not keep, durably, then free the space as `gc` does.

        Tags, pins, readers and the newest valid checkpoint are checked again before each drop.

        Args:
            policy: The policy, or the plan of a dry run (``report.retention.plan``), which is applied unchanged. If
                None, the policy of the store.
            run: Only this run, even if the plan has others. If None, the run of `open`, otherwise each run by itself,
                or the runs of the plan.
            dry_run: Change nothing, and report the checkpoints and data that would be dropped and freed. The plan in
                the report has the reasons for each checkpoint.
            exclusive: As in `gc`.
            now: Free the data immediately. Dropped checkpoints cannot be restored.

        Returns:
            The report of `gc`. Its `retention` has the plan, and the dropped and skipped checkpoints.

        Raises:
            NoSuchRef: There is no checkpoint of that run.
            BadInput: There is no policy, no checkpoint has a metric that the policy uses, the plan does not concern
                the run, or a tag or a pin cannot be read.
            InUse: Another gc is running, and no checkpoint had to be dropped. If checkpoints were dropped, a
                `CkstoreWarning` reports instead that their space is not free yet.
            SaveFailed: The store cannot be written.
            CatalogUnavailable: The catalog cannot be used. `reindex` makes a new one.
        """
        from ckstore.ops.free.gc import prune

        run = self.run if run is None else run
        return prune(self._context, policy, run, dry_run=dry_run, exclusive=exclusive, now=now)

    @api_call
    def compact(
        self,
        refs: Iterable[RefLike] = (),
        run: str | None = None,
        *,
        keep_newest: int = 3,
        dry_run: bool = False,
    ) -> CompactionReport:
        """Compact checkpoints without loss, by storing most of their data as differences from newer checkpoints.

        Contents and ids do not change. Loads take longer. A plain blob is deleted only after its encoded form was
        written, made durable, read back, decoded and compared. Checkpoints that are tagged, pinned or in use are not
        changed. Writing and reading compacted checkpoints requires the packages of ``ckstore[compact]``.

        Args:
            refs: Only these checkpoints. If none are given, all.
            run: Only this run. If None, the run of `open`, otherwise each run by itself.
            keep_newest: Number of the newest checkpoints of a run that remain plain, at least 1.
            dry_run: Change nothing, and report which blobs would be encoded against which.

        Raises:
            NoSuchRef, AmbiguousRef: A ref does not name one checkpoint.
            BadInput: `keep_newest` is below 1.
            MissingExtra: The packages of ``ckstore[compact]`` are not installed.
            SaveFailed: The store cannot be written, or written data does not read back identically.
        """
        from ckstore.model.reports.compaction import CompactionReport
        from ckstore.ops.compact.compact import compact
        from ckstore.ops.compact.plan import plan

        made = plan(self._context, refs, self.run if run is None else run, keep_newest=keep_newest)
        return CompactionReport(made, dry_run=True) if dry_run else compact(self._context, made)

    @api_call
    def gc(self, *, dry_run: bool = False, exclusive: bool = False, now: bool = False) -> GcReport:
        """Delete unreferenced blobs, leftovers of killed saves, and the download cache.

        Savers and readers can continue during gc. Data that a process has open is kept, and reported with the process.
        The first gc after the data was closed deletes it.

        Args:
            dry_run: Change nothing, and report the data that would be deleted.
            exclusive: Declares that no other host saves, reads or collects in the store. On a shared filesystem, open
                files of other hosts are not visible. Without `exclusive`, only data that has waited for
                `StoreConfig.grace_s` is deleted there. On other filesystems, this option has no effect.
            now: Also delete data that `undo` could restore.

        Raises:
            InUse: Another gc is running. Nothing was changed.
            BadInput: A tag or a pin cannot be read.
            CatalogUnavailable: The catalog cannot be used. `reindex` makes a new one.
        """
        from ckstore.ops.free.gc import gc

        return gc(self._context, dry_run=dry_run, exclusive=exclusive, purge=now)

    @api_call
    def undoable(self) -> tuple[Waiting, ...]:
        """Return the dropped and replaced checkpoints that `undo` can restore, the most recently dropped first.

        A checkpoint that lacks a blob is listed with a `problem`, and is freed at the same time as other checkpoints.
        See `StoreConfig.undo_by_hand_s` and `StoreConfig.undo_by_rule_s`.

        Raises:
            CkstoreError: A directory of the store cannot be read.
        """
        from ckstore.ops.free.undo import waiting

        return waiting(self._context)

    @api_call
    def undo(self, ref: RefLike = "latest") -> CheckpointInfo:
        """Restore a checkpoint that was dropped or replaced, durably and with identical bits.

        Args:
            ref: ``RUN@STEP``, an id, or a `CheckpointInfo`, of a checkpoint that `undoable` lists. ``latest`` is the
                checkpoint that was dropped last.

        Raises:
            NoSuchRef: The checkpoint no longer exists, or gc is freeing it.
            DamagedBlob: The checkpoint lacks a blob, or its manifest is damaged. `undoable` lists it with a `problem`.
            BadInput: The ref is not valid for `undo`, or several runs have such a checkpoint.
        """
        from ckstore.ops.free.undo import undo

        return undo(self._context, ref)

    @api_call
    def rename_run(self, old: str, new: str) -> list[CheckpointInfo]:
        """Rename a run durably and return its checkpoints, the oldest first.

        Data is not copied. Each checkpoint gets a new id, since the id depends on the name of the run. Metrics, notes,
        times, tags, pins and the rules of the run are kept. Background saves of this handle to the run are finished
        first. After a kill, the same call continues the renaming, and also renames checkpoints that the same training
        has since saved under the old name. If another process drops some of the checkpoints during the renaming, the
        others are renamed, and a `CkstoreWarning` names the dropped ones.

        The mirror also keeps the checkpoints under the old name, until `StoreConfig.keep_remote` removes them. Without
        that policy, a `CkstoreWarning` reports their number.

        Raises:
            NoSuchRef: There is no such run, or all its checkpoints were dropped during the renaming.
            InUse: A save to the run is in progress, or one of its checkpoints is open. If a checkpoint was opened,
                tagged or pinned during the renaming, repeating the call completes the renaming.
            StepExists: The run `new` has its own checkpoints, or a process reserved the name with ``run="auto"``.
            DamagedBlob, BytesElsewhere: A checkpoint is not whole locally. Nothing was changed.
            BadInput: A name is not a valid run name, or both names have rules in `config.retention_by_run`.
            SaveFailed, InsufficientSpace: The store cannot be written. All checkpoints still have their old names.
            CkstoreError: A background save failed, and its `result` was not read. Nothing was changed.
        """
        from ckstore.ops.rename_run import rename_run
        from ckstore.remote.mirror import run_copies

        self.background._settle(old)  # noqa: SLF001 - its own
        return rename_run(self._context, old, new, run_copies)

    @api_call_in_memory
    def savers(self) -> tuple[SaverStatus, ...]:
        """Return the savers of this store, for all handles and users whose processes are visible to this process.

        Raises:
            CkstoreError: The processes of this host cannot be listed.
        """
        from ckstore.saver.client.savers import savers_of

        return savers_of(str(self.path))

    @api_call
    def doctor(self) -> DoctorReport:
        """Check the store and its filesystem for problems.

        Each finding that is not ok has advice. The store is not changed. If this user may write, links and block
        sharing are tested with temporary names that are removed immediately.

        Raises:
            CkstoreError: A directory of the store cannot be read.
        """
        from ckstore.ops.report.doctor import examine_all

        return examine_all(self._context, _remote_checks())

    @api_call
    def tag(self, name: str, ref: RefLike = "latest") -> CheckpointInfo:
        """Tag a checkpoint durably.

        An existing tag moves. Tagged checkpoints are never dropped.

        Raises:
            BadInput: `name` is not a valid tag name.
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
            InUse: Another process is deleting the checkpoint.
        """
        from ckstore.ops.refs.labels import tag

        info = tag(self._context, name, ref)
        wake_mirror(self._context, "said")
        return info

    @api_call
    def untag(self, name: str) -> None:
        """Remove a tag durably, even if it cannot be read.

        The checkpoint remains.

        Raises:
            NoSuchRef: There is no such tag.
            BadInput: There is a directory at the path of the tag.
            InUse: Another process has held the lock on tags for ten seconds.
        """
        from ckstore.ops.refs.labels import untag

        untag(self._context, name)

    @api_call
    def tags(self) -> list[Tag]:
        """Return all tags by name.

        Dangling tags are marked, and a warning names tags that cannot be read.

        Raises:
            CkstoreError: A directory of the store cannot be read.
        """
        from ckstore.ops.refs.labels import tags

        return BriefList(tags(self._context))

    @api_call
    def pin(self, ref: RefLike, reason: str, expires: str | float | timedelta | datetime | None = None) -> Pin:
        """Protect a checkpoint from retention and `delete`, durably.

        Args:
            ref: The checkpoint. It is protected by its id, so it is also kept when its step is saved again.
            reason: The reason, which is shown whenever the pin protects the checkpoint.
            expires: A duration such as ``36h`` or ``7d``, seconds, or a datetime with a time zone. If None, never.

        Raises:
            BadInput: `reason` or `expires` is invalid.
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
            InUse: Another process is deleting the checkpoint.
        """
        from ckstore.ops.refs.labels import pin

        made = pin(self._context, ref, reason, expires)
        wake_mirror(self._context, "said")
        return made

    @api_call
    def unpin(self, ref: RefLike | Pin) -> list[str]:
        """Remove one pin by its name, or all pins of a checkpoint, and return their names.

        Raises:
            NoSuchRef: There is no such pin, or the checkpoint has none.
            InUse: Another process has held the lock of the store for ten seconds.
        """
        from ckstore.ops.refs.labels import unpin

        return unpin(self._context, ref)

    @api_call
    def pins(self) -> list[Pin]:
        """Return all pins in the order of their creation.

        Expired and dangling pins are marked.

        Raises:
            BadInput: A pin cannot be read. Nothing is dropped until it is repaired or removed.
        """
        from ckstore.ops.refs.labels import pins

        return BriefList(pins(self._context))

    @api_call
    def annotate(
        self, ref: RefLike, metrics: Mapping[str, Any] | None = None, note: str | None = None
    ) -> CheckpointInfo:
        """Add metrics, such as those of an evaluation, and a note to a checkpoint, durably.

        Retention rules use these metrics. An existing metric gets the new value. If two callers annotate at the same
        time, both annotations are kept.

        Returns:
            The updated information about the checkpoint.

        Raises:
            BadInput: A metric is not a number, or there is nothing to add.
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint.
            InUse: Another process is deleting the checkpoint.
        """
        from ckstore.ops.refs.labels import annotate

        info = annotate(self._context, ref, metrics, note)
        wake_mirror(self._context, "said")
        return info

    @property
    def remotes(self) -> Remotes:
        """The remotes that checkpoints are pushed to and pulled from, by name: add, probe, remove or list them."""
        from ckstore.remote.remotes import Remotes

        return Remotes(self._context)

    @property
    def config(self) -> StoreConfig:
        """The settings of the store, which can be read and set: ``store.config.retention = policy``."""
        from ckstore.ops.config import StoreConfig

        return StoreConfig(self._context)

    def close(self, timeout_s: float = 2.0) -> None:
        """Release the saver, if there is one.

        Nothing else is held open between calls. This waits at most `timeout_s` for the results of background saves. The
        saver finishes the remaining saves, even if this process ends. `background.wait` waits longer.

        Args:
            timeout_s: Maximum time to wait, in seconds.

        Raises:
            CkstoreError: A background save failed, and its `result` was not read.
        """
        try:
            self.background._close(timeout_s)  # noqa: SLF001 - its own
        finally:
            self._tell_failures()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # the caller gets its own error, not those of the saves
            self.background._close(None)  # noqa: SLF001 - its own
            self._tell_failures()

    def _tell_failures(self) -> None:
        """Log again the saves that failed while the training continued, if there are any."""
        from ckstore.ops.save.tolerance import tell_failures

        tell_failures(self._context.totals)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about the filesystem and the state of the store, one sentence each."""
        return tuple(dict.fromkeys((*self._notes, *self._context.notices.problems.values())))

    @property
    def settings(self) -> StoreSettings:
        """The identity of the store: uuid, hash, chunk size, time of creation."""
        return self._context.settings

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments of opening, so that a spawned worker opens the store again."""
        context, known = self._context, self._context.known
        # Include the parents, because with `ddp_spawn` this process loads, and rank 0 saves in a spawned process.
        continues = dict(known.last_parents), known.declared
        return _opened_again, (type(self), self.path, self.run, context.readonly, context.catalog_path, continues)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}{'' if self.run is None else f', run={self.run!r}'})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    # New users may try these operations first. The errors of Python would not name the right method.
    def __getitem__(self, ref: object) -> NoReturn:
        """Refuse ``store[ref]``, and name the method to use.

        Raises:
            TypeError: Always.
        """
        msg = f"a Store has no [...]: store.load({ref!r}) loads a checkpoint, store.info({ref!r}) describes it"
        raise TypeError(msg)

    def __setitem__(self, step: object, state: object) -> NoReturn:
        raise TypeError(f"a Store has no [...]: store.save(state, step={step!r}) saves a checkpoint")

    def __delitem__(self, ref: object) -> NoReturn:
        raise TypeError(f"a Store has no [...]: store.delete({ref!r}) deletes a checkpoint")

    def __contains__(self, ref: object) -> NoReturn:
        msg = f"a Store is not a collection: store.info({ref!r}) describes a checkpoint, or raises NoSuchRef"
        raise TypeError(msg)

    def __iter__(self) -> NoReturn:
        raise TypeError("a Store is not iterable: store.checkpoints() lists its checkpoints")

    def __len__(self) -> NoReturn:
        raise TypeError("a Store has no len(): len(store.checkpoints()) counts its checkpoints")

    def __bool__(self) -> bool:
        """Return True, since Python would otherwise call `__len__`."""
        return True

    def _mirror_to(self, mirror: str | os.PathLike[str]) -> None:
        """Set the mirror; a store without local data lists the checkpoints of the mirror."""
        from ckstore.remote.mirror.mirror_address import entry_of, free_name, learn_mirror

        entry = entry_of(self._context, mirror)
        # If the mirror is already set, make no request, since a training must restart even without a reachable mirror.
        if entry is not None and self.config.mirror == entry.name:
            return
        if entry is None:
            entry = self.remotes.add(free_name(self._context, mirror), mirror)
        # Without local data, the store is new or its listing was interrupted. Otherwise do not list the mirror, since
        # local checkpoints must not be mixed with those of other stores.
        if all(info.elsewhere for info in self.checkpoints()):
            self._list_remote(entry.name)
        else:
            learn_mirror(self._context, entry.name)
        # Set the mirror last, so that a repeated call redoes all steps if one failed.
        self.config.mirror = entry.name
        wake_mirror(self._context, "saved")

    @api_call
    def mirror_status(self) -> MirrorStatus | None:
        """Return how far the mirror of the store is behind, or None if it has no mirror.

        Raises:
            BadInput: The settings are damaged.
        """
        from ckstore.ops.mirror_record import status_of
        from ckstore.ops.refs.listing import current_or_named

        return status_of(self._context, current_or_named(self._context))

    @api_call
    def _list_remote(self, name: str) -> None:
        from ckstore.ops.notices import warn
        from ckstore.remote.remote_only.clone import list_remote
        from ckstore.remote.remote_opener import open_source

        _, warnings = list_remote(self._context, open_source(self._context, name))
        for text in warnings:
            warn(text)

    def _requested(
        self,
        run: str | None,
        step: int | None,
        options: SaveOptions,
        progress: Progress | None,
        ranks: Ranks | None,
    ) -> Callable[[], Request]:
        """Return a function that waits for the background saves of the run and returns the request."""
        from ckstore.ops.save.options import request_of

        def request() -> Request:
            self.background._settle(self._effective_run(run))  # noqa: SLF001 - its own
            # If there are ranks, only the first rank adds the facts of its subscribers.
            has_facts = getattr(ranks, "rank", 0) == 0
            return request_of(self._context, self._run_named(run), step, options, progress, has_facts=has_facts)

        return request

    def _log_warnings(
        self, save: Callable[[], CheckpointInfo], on_failure: OnFailure, run: str | None, step: int | None
    ) -> CheckpointInfo | NotSaved:
        """Save, log the notes and return the checkpoint; with ``warn``, a failed save returns a `NotSaved`."""
        from ckstore.ops.save.tolerance import or_not_saved

        info = or_not_saved(self._context, save, on_failure, self._effective_run(run), step)
        if isinstance(info, CheckpointInfo):
            log_notes(info.name, info.warnings, self._context.notices.logged)
        return info

    def _run_named(self, run: str | None) -> str:
        """Return `_effective_run`; if no run is named, `Notices.tell_unnamed_run` may warn."""
        if run is None:
            self._context.notices.tell_unnamed_run()
        return self._effective_run(run)

    def _effective_run(self, run: str | None) -> str:
        if run == AUTO:
            return self._new_run()
        return (self.run or DEFAULT_RUN) if run is None else run

    def _run_of_all(self, run: str | None, ranks: Ranks) -> str:
        if run == AUTO:
            _refuse_ranks(str(ranks.world_size))
        return self._effective_run(run)

    def _new_run(self) -> str:
        """Return the run of ``run="auto"``; the first call reserves it."""
        if self._auto_run is None:
            from ckstore.ops.save.continuation import take_free_run

            self._auto_run = take_free_run(self._context, self.run or DEFAULT_RUN)
        return self._auto_run

    @api_call
    def _bind_new_run(self) -> None:
        self.run = self._context.run = self._new_run()

    @api_call
    def _continue(self, ref: RefLike) -> None:
        from ckstore.ops.read.load import continue_from
        from ckstore.ops.refs.find import find
        from ckstore.ops.save.continuation import parent_at

        parent = parent_at(self._context, find(self._context, ref))
        self._context.known.declared = parent
        continue_from(self._context, parent)

    def _act_places(self) -> tuple[object, ...]:
        return self._context.act_places()


def context_of(store: Store) -> Context:
    """Return the context that the operations of an open store share; framework integrations use it."""
    return store._context  # noqa: SLF001 - its own


def _opened_again(  # noqa: PLR0917 - a pickle has no names
    cls: type[Store],
    path: Path,
    run: str | None,
    readonly: bool,  # noqa: FBT001
    catalog_path: Path | None,
    continues: tuple[dict[str, Parent], Parent | None],
) -> Store:
    store = cls(path, run=run, readonly=readonly, catalog_path=catalog_path)
    known = context_of(store).known
    known.last_parents, known.declared = continues
    return store


def _refuse_ranks(world_size: str) -> None:
    """Refuse ``run="auto"`` if there are several ranks."""
    if world_size.isdecimal() and int(world_size) > 1:
        msg = f'run="auto": each of {world_size} ranks would take a run of its own'
        raise BadInput(msg, hint='one rank calls Store.open(path, run="auto").run and sends the name to all ranks')


def _of_training(state: object, options: SaveOptions) -> None:
    """Set ``if_run_in_use="error"`` for a captured state, unless the caller chose a value."""
    if options.get("if_run_in_use") is None and isinstance(state, dict):
        record = state.get(CAPTURED)
        if isinstance(record, str) and record.startswith("{") and '"conditions"' in record:
            options["if_run_in_use"] = "error"


def _resolved(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.realpath(expanded(path)))
    except OSError as error:  # the working directory was deleted
        msg = f"{os.fspath(path)!r} is relative to a working directory that does not exist: {error.strerror}"
        raise BadInput(msg, hint="give an absolute path") from error


@api_call
def _open(
    root: Path, *, run: str | None, readonly: bool, recover: bool, catalog_path: Path | None
) -> tuple[Context, tuple[str, ...]]:
    from ckstore.ops.config_file import FAILED_SAVES_MOST, ON_FAILED_SAVE, settings_or_defaults
    from ckstore.ops.mirror_settings import MIRROR
    from ckstore.ops.open.opening import open_context

    context, notes = open_context(
        root, run=run, readonly=readonly, recover=recover, catalog_path=catalog_path, subscribers=[COMPACTION]
    )
    attach(context)
    context.fetch = _fetching(context)
    context.rescuer = _LazyRescue(context)
    if not context.readonly:
        # Read these settings now, since `save_async` does not access the filesystem.
        most, act, mirror = settings_or_defaults(context.layout, FAILED_SAVES_MOST, ON_FAILED_SAVE, MIRROR)
        vars(context).update(failed_saves_most=most, on_failed_save=act)
        if mirror is not None:
            wake_mirror(context, "opened")
    return context, notes


def _fetching(context: Context) -> Callable[..., int | None]:
    """Return the function that reads remote data; it imports the modules for remotes at the first read."""

    @cache
    def reader() -> RemoteReader:
        from ckstore.remote.remote_only.remote_reader import RemoteReader

        return RemoteReader(context)

    def fetch(*asked: Any) -> int | None:
        return reader()(*asked)

    return fetch


def _remote_checks() -> MoreChecks:
    from ckstore.ops.report.doctor import MoreChecks
    from ckstore.remote.remote_report import check_checkpoints, check_remote_ages

    return MoreChecks(check_checkpoints, "purge of remotes", check_remote_ages)


def _remote_copies(context: Context, urls: Sequence[str]) -> CopySource:
    from ckstore.remote.remote_only import remote_copies

    return remote_copies.RemoteCopies(context, urls)


class _LazyRescue:
    """Repairs damage that loads detect; the modules for repairs are imported at the first damage."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: list[RemoteRescuer] = []

    def _rescue(self) -> RemoteRescuer:
        if not self._made:
            from ckstore.remote.remote_only.rescue import RemoteRescuer

            self._made.append(RemoteRescuer(self._context, _remote_copies(self._context, ())))
        # Return the first rescuer. Threads that detect damage at the same time must share it, because each rescuer
        # sends its own requests to the remotes.
        return self._made[0]

    def blob(
        self, directory: CheckpointDirectory, error: DamagedBlob | RemoteError, blob: BlobRecord, *, first: bool
    ) -> memoryview | None:
        return self._rescue().blob(directory, error, blob, first=first)

    def checkpoint(self, key: CheckpointKey) -> bool:
        return self._rescue().checkpoint(key)

    def tell(self, directory: CheckpointDirectory) -> None:
        if directory.rescued:
            self._rescue().tell(directory)


@api_call
def _settings_at(root: Path, mirror: str | os.PathLike[str]) -> tuple[str, int] | None:
    from ckstore.remote.mirror.mirror_address import settings_at

    return settings_at(root, mirror)


@api_call
def _new_settings(
    _: Path, source: str | os.PathLike[str], name: str, endpoint: str | None, region: str | None
) -> tuple[str, int]:
    from ckstore.remote.remote_only.clone import new_settings

    return new_settings(source, name, endpoint=endpoint, region=region)


@api_call
def _create(
    root: Path,
    hash_name: str,
    chunk_bytes: int | None,
    catalog_path: str | os.PathLike[str] | None,
    *,
    exist_ok: bool,
) -> bool:
    """Create a store and return True, or return False if a store exists and `exist_ok` is True."""
    from ckstore.model.settings.settings import DEFAULT_CHUNK_BYTES
    from ckstore.ops.open.opening import check_new, create
    from ckstore.ops.settings_file import NO_DIRECTORY_HINT

    try:
        check_new(root, None if catalog_path is None else expanded(catalog_path))
        made = create(
            root, hash_name=hash_name, chunk_bytes=DEFAULT_CHUNK_BYTES if chunk_bytes is None else chunk_bytes
        )
    except OSError as error:
        msg = f"no store could be made at {root}: {error.strerror or error}"
        hint = "the operating system reported the cause above"
        if isinstance(error, NotADirectoryError):
            hint = NO_DIRECTORY_HINT
        elif isinstance(error, PermissionError) or error.errno == errno.EROFS:
            hint = "choose a place in a directory that you may write to"
        raise BadInput(msg, hint=hint) from error
    if not made and not exist_ok:
        msg = f"there is already a store at {root}"
        raise BadInput(msg, hint="open it with Store.open(path); Store.open_or_init(path) opens a store or makes one")
    return made


@api_call
def _tell_made(root: Path) -> None:
    from ckstore.ops.open.opening import tell_made

    tell_made(root)


def separate_stores() -> SeparateStores:
    """Return the module with which ranks on nodes with separate stores save one checkpoint on their common mirror."""
    from ckstore.remote.mirror import nodes_without_shared_store

    return nodes_without_shared_store


def open_checkpoint(path: str | os.PathLike[str], *, max_bytes: int | None = None) -> OpenCheckpoint:
    """Open a checkpoint by its directory, in a store or a copy made with ``cp -r``, as a context manager.

    Args:
        path: The directory of the checkpoint.
        max_bytes: As with `Store.open_checkpoint`.

    Raises:
        BadInput: There is no such directory.
        DamagedBlob: The directory has no valid manifest.
    """
    return _open_checkpoint(_resolved(path), max_bytes)


@api_call
def _open_checkpoint(path: Path, max_bytes: int | None) -> OpenCheckpoint:
    from ckstore.ops.read.open_checkpoint import open_path

    return open_path(path, max_bytes)
