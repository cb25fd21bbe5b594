"""The settings of a store that can be changed: ``store.config``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from ckstore.errors import BadInput, CatalogUnavailable
from ckstore.model.best import metrics_there
from ckstore.model.document import shown
from ckstore.model.settings.retention import Budget, RetentionPolicy
from ckstore.objects.layout import Layout
from ckstore.ops import config_file
from ckstore.ops.api_calls import api_call
from ckstore.ops.config_file import Setting
from ckstore.ops.context import Context, annotated, read_info
from ckstore.ops.mirror_settings import (
    KEEP_REMOTE,
    MIRROR,
    MIRROR_AGE_S,
    MIRROR_BYTES_S,
    MIRROR_KEEP,
    check_mirror,
)

T = TypeVar("T")
_GLOB = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,100}")


def _json_of_policy(context: Context, member: str, policy: object) -> dict[str, Any]:
    if not isinstance(policy, RetentionPolicy):
        raise BadInput(f"{member} must be a RetentionPolicy or None, got {shown(policy)}")
    _refuse_misspelt(context, member, policy)
    return policy.to_json()


def _json_by_run(context: Context, member: str, policies: object) -> dict[str, Any]:
    if not isinstance(policies, Mapping):
        raise BadInput(f"{member} must be a dict of run or glob -> RetentionPolicy, got {shown(policies)}")
    for glob in policies:
        if not isinstance(glob, str) or not _GLOB.fullmatch(glob):
            raise BadInput(f"{member}: wanted the name of a run or a glob such as 'sweep-*', got {shown(glob)}")
    return {glob: _json_of_policy(context, member, policy) for glob, policy in policies.items()}


def _json_of_budget(_: Context, member: str, budget: object) -> dict[str, Any]:
    if not isinstance(budget, Budget):
        raise BadInput(f"{member} must be a Budget or None, got {shown(budget)}", hint='Budget("500GB")')
    return budget.to_json()


def _refuse_misspelt(context: Context, member: str, policy: RetentionPolicy) -> None:
    """Refuse a metric that no checkpoint has, if checkpoints have other metrics."""
    # A metric in the rows of the catalog is accepted without reading directories. If no checkpoint has metrics yet, any
    # name is accepted.
    wanted = {best.metric for best in policy.bests}
    try:
        metrics = [info.metrics for info in context.catalog.infos()] if wanted else []
    except CatalogUnavailable:  # a rule that cannot be evaluated drops nothing
        return
    if not _lacking(wanted, metrics):
        return
    # The rows may be old or wrong, so check the manifests and annotations before a refusal.
    metrics = [
        annotated(context, info).metrics
        for key, _ in context.layout.published()
        if (info := read_info(context, key)) is not None
    ]
    if lacking := _lacking(wanted, metrics):
        metric = min(lacking)
        msg = f"{member} is unchanged: no checkpoint has the metric {metric}"
        raise BadInput(msg, hint=metrics_there(metrics, metric))


def _lacking(wanted: set[str], all_metrics: Iterable[Mapping[str, float]]) -> set[str]:
    """Return the wanted metrics that no checkpoint has, or nothing if no checkpoint has any metric."""
    known = {metric for metrics in all_metrics for metric in metrics}
    return wanted - known if known else set()


class _Attribute(Generic[T]):
    """A descriptor for one setting.

    Reading or changing the setting is an API call with the name of the setting.

    Args:
        member: The member in ``config.json``.
        read: Returns the value of the setting for a store.
        to_json: Checks a new value, and returns its JSON value.
    """

    def __init__(
        self, member: str, read: Callable[[Layout], T], to_json: Callable[[Context, str, object], object]
    ) -> None:
        def get(config: StoreConfig) -> T:
            # Read the file each time, since another process may have changed the setting after this store was opened.
            return read(config._context.layout)  # noqa: SLF001 - of this module

        def change(config: StoreConfig, value: T | None) -> None:
            context = config._context  # noqa: SLF001 - of this module
            new = None if value is None else to_json(context, member, value)
            # Check the store after the value, so that a wrong value is reported even if the store is read-only.
            context.check_writable()
            config_file.edit(context.layout, member, lambda _: new)
            vars(context).pop(member, None)  # remove a cached value, such as the number of threads

        for function in (get, change):
            function.__name__, function.__qualname__ = member, f"StoreConfig.{member}"
        self._get, self._change = api_call(get), api_call(change)

    def __get__(self, config: StoreConfig, _: object = None) -> T:
        return self._get(config)

    def __set__(self, config: StoreConfig, value: T | None) -> None:
        self._change(config, value)


def _plain(setting: Setting[T]) -> _Attribute[T]:
    def to_json(_: Context, member: str, value: object) -> object:
        if not setting.fits(value):
            raise BadInput(f"{member} must be {setting.wanted}, got {shown(value)}")
        return value

    return _Attribute(setting.name, lambda layout: config_file.setting_of(layout, setting), to_json)


def _policy(member: config_file.PolicyMember) -> _Attribute[RetentionPolicy | None]:
    return _Attribute(member, lambda layout: config_file.policy_of(layout, member), _json_of_policy)


class StoreConfig:
    """The settings of a store: `Store.config`.

    Each access to an attribute reads or writes ``config.json``. A change of a setting is durable, and applies to every
    process. Assigning None, or ``del store.config.retention``, restores the default. An unknown name raises
    `AttributeError`. A change in a store that was opened for reading raises `ReadOnlyStore`. An invalid value, or a
    damaged file of settings, raises `BadInput`, and settings of a newer ckstore raise `NewerFormat`.
    """

    __slots__ = ("_context",)

    retention = _policy(config_file.RETENTION)
    """The policy that every process applies to a run after each save to it. If None, all checkpoints are kept.

    The save frees the data of dropped checkpoints. Checkpoints that exist when the policy is set are kept until the
    next save of their run. ``store.prune()`` applies the policy immediately.
    """

    retention_by_run = _Attribute(config_file.BY_RUN, config_file.policies_by_run, _json_by_run)
    """Policies of single runs, by name or glob: ``{"sweep-*": RetentionPolicy(keep_last=1)}``.

    The policy with the name of a run applies to this run, otherwise the policy with the longest matching glob, and
    otherwise `retention`.
    """

    budget = _Attribute(config_file.BUDGET, config_file.budget_of, _json_of_budget)
    """The maximum size of all blobs of checkpoints on disk: ``Budget("2TB", low_bytes="1.8TB")``. If None, no limit.

    If the size exceeds the budget, a save drops the oldest checkpoints of all runs once it is durable. Checkpoints that
    are the best according to a rule of their run are dropped last. Tagged, pinned and open checkpoints and the newest
    valid checkpoint of each run are kept. If these checkpoints alone exceed the budget, `prune` and a warning of the
    save report this.
    """

    make_room = _policy(config_file.MAKE_ROOM)
    """The policy for dropping checkpoints before a save that would otherwise not fit. If None, the save drops none.

    The policy selects the checkpoints to keep, in every run. The save drops and frees the oldest of the remaining
    checkpoints. It drops no more than necessary, and none if dropping all of them would not be enough.
    ``info.warnings`` names the dropped checkpoints. Tagged, pinned and open checkpoints and the newest valid checkpoint
    of each run are always kept.

    Before it drops checkpoints, and even without this policy, such a save evicts checkpoints that the `mirror` has, the
    oldest first. It does not evict the checkpoints that `keep_local` keeps. Without `keep_local`, it does not evict the
    checkpoints that this policy keeps. Without both policies, it does not evict the newest checkpoint of each run.
    """

    read_back = _plain(config_file.READ_BACK)
    """Whether a save reads its new data back from the disk, bypassing the page cache, and compares the bytes.

    The save does this before it reports success. This detects a disk that stores other bytes than were written.
    Default: False.
    """

    recheck_share = _plain(config_file.RECHECK_SHARE)
    """How many bytes of reused blobs a save rereads, as a share of the size of its state. If 0, none.

    The save rereads at least 256 KiB from the disk, and begins with the bytes that were read longest ago. Every byte of
    an unchanged state is compared within 1 / `recheck_share` + 2 saves. Corrupted data is written again from the state
    and replaced in every checkpoint, and ``info.warnings`` reports it. Default: 0.005.
    """

    save_retries = _plain(config_file.SAVE_RETRIES)
    """How many times a save is retried after a transient failure of the storage, each time as a new save.

    Transient failures are an I/O error, a stale file handle, a server or a network that did not answer, and a disk or
    quota that became full during the save. The pauses are 0.25, 1, 4 and 16 s, then 30 s each. ``info.warnings``
    reports retries. Default: 2.
    """

    wait_for_space_s = _plain(config_file.WAIT_FOR_SPACE_S)
    """How many seconds a save waits for space on a full disk, after freeing what it may. If 0, it fails immediately.

    Default: 0.
    """

    on_failed_save = _plain(config_file.ON_FAILED_SAVE)
    """The reaction of integrations to a save that fails because of the storage.

    ``raise`` ends the training, and ``warn`` continues it.

    `Store.save` and `Store.commit` have an argument for this instead, since their callers use the result. Default:
    ``raise``.
    """

    failed_saves_most = _plain(config_file.FAILED_SAVES_MOST)
    """How many saves in a row may fail with ``warn``. The next failure is raised. Default: 3."""

    health_share = _plain(config_file.HEALTH_SHARE)
    """The share of new data in which a save counts values that are not finite. 0 means none, 1 means all of it.

    A share below 1 applies only to chunks above 2 MiB. A save checks this share of each such chunk, and the next save
    checks another part. If the checked part has a value that is not finite, the whole tensor is counted.
    `CheckpointInfo.unhealthy` and `CheckpointInfo.unchanged` have the results. If 0, both are unknown. Default: 0.0625.
    """

    grace_s = _plain(config_file.GRACE_S)
    """How many seconds dropped data is kept in ``trash/`` on a filesystem that other hosts also use.

    For this time, a reader on another host can continue to read a dropped checkpoint, and a save on another host can
    pause. On other filesystems, this setting has no effect. Default: 3600.
    """

    undo_by_hand_s = _plain(config_file.UNDO_BY_HAND_S)
    """For how many seconds `undo` can restore checkpoints that `delete` and `prune` dropped.

    If 0, their data is freed immediately. Otherwise the data is kept for this time, but ``gc(now=True)`` and a save
    without room free it earlier. If other hosts use the store, `grace_s` applies instead. Default: 86400, a day.
    """

    undo_by_rule_s = _plain(config_file.UNDO_BY_RULE_S)
    """Like `undo_by_hand_s`, but for checkpoints that a policy drops after a save or that a save replaces. Default: 0.

    Checkpoints that a budget drops after a save, or that `make_room` drops, are freed immediately, since their space is
    needed. If `prune` applies the budget, `undo_by_hand_s` applies.
    """

    evaluation_patience_s = _plain(config_file.EVALUATION_PATIENCE_S)
    """For how many seconds an evaluation protects its checkpoint from being dropped; see `Store.follow`.

    After this time, a rule may drop the checkpoint, and the drop is reported. On a shared filesystem, an evaluator on
    another host may then also get the checkpoint, if the lock of the first evaluator is not visible on that host.
    Default: 3600.
    """

    shared = _plain(config_file.SHARED)
    """Whether other hosts use the store. If None, this is detected from the filesystem, as ``ckstore doctor`` shows.

    Use True for a shared filesystem that ckstore does not recognize as shared, and False for a filesystem that only
    this host uses, such as some FUSE filesystems. With False, dropped data is freed immediately, and data that other
    hosts have open is lost. A change applies only to stores that are opened afterwards, so set it before other hosts
    open the store. Default: None.
    """

    threads = _plain(config_file.THREADS)
    """How many threads a save, a load, a checkout or a verification uses. If None, this depends on the machine.

    Then four threads are used, or half of the cores if there are more than eight, but at most sixteen. Set a number if
    a rank should use only some of the cores of a machine, and its CPU affinity does not restrict it to these cores.
    Stores that are already open keep their number of threads. Default: None.
    """

    mirror = _Attribute(
        MIRROR.name,
        lambda layout: config_file.setting_of(layout, MIRROR),
        check_mirror,
    )
    """The remote to which each checkpoint is copied once it is durable locally. If None, there is no mirror.

    A separate process pushes the newest checkpoints first. It neither delays a save nor makes a save fail. A save
    starts this process, and so does opening the store for writing if the mirror lacks a checkpoint. The process may
    outlive the training.
    """

    mirror_age_s = _plain(MIRROR_AGE_S)
    """For how many seconds a checkpoint may exist only locally before `doctor` warns. Default: 600."""

    mirror_bytes_s = _plain(MIRROR_BYTES_S)
    """The maximum upload rate of the mirror, in bytes per second. If None, no limit. Default: None."""

    mirror_keep = _plain(MIRROR_KEEP)
    """How many checkpoints of each run policies keep because the mirror lacks them, the newest first. If 0, none.

    `make_room` may drop these checkpoints for a save that would otherwise not fit. Default: 3.
    """

    cache_bytes = _plain(config_file.CACHE_BYTES)
    """How many downloaded bytes of evicted checkpoints are cached. If 0, none.

    The least recently used bytes are removed first. `Store.gc` and a save without room remove all of them. If None, the
    limit is a tenth of the disk. The limit is never more than half of the space that would be free without the cache.
    Default: None.
    """

    keep_local = _policy(config_file.KEEP_LOCAL)
    """Which checkpoints keep their local data. If None, all do.

    After a push, the store evicts the other checkpoints that the mirror has, as `evict` does. Evicted checkpoints
    remain listed, and reads download the data that they need. The policy does not count checkpoints without local data.
    Tagged and pinned checkpoints keep their local data.
    """

    keep_remote = _policy(KEEP_REMOTE)
    """Which checkpoints the mirror keeps, in the runs of this store. If None, all of them.

    Other checkpoints are removed from the mirror, and `Remotes.prune` deletes their blobs after its grace period.
    Removed checkpoints without local data are also dropped locally. Superseded checkpoints are also removed.
    Checkpoints that are tagged or pinned in the store or on the mirror, and the newest checkpoint of each run, are
    kept. Until a checkpoint that this policy keeps has been pushed, no policy drops it locally, but a save that would
    otherwise not fit may drop it.
    """

    compact_after = _plain(config_file.COMPACT_AFTER)
    """The age at which a checkpoint is compacted automatically: ``12h``, ``7d`` or seconds. If None, never.

    A separate process compacts, with a share of one processor, at a lower priority than the training. A save starts
    the process, at most every ten minutes, and the process ends when no work is left. Tags, pins and `compact_keep`
    protect checkpoints from compaction. Writing and reading compacted checkpoints requires ``ckstore[compact]``.
    `Store.compact` works without this setting. Default: None.
    """

    compact_share = _plain(config_file.COMPACT_SHARE)
    """The maximum share of one processor that compaction uses. Default: 0.1."""

    compact_keep = _plain(config_file.COMPACT_KEEP)
    """How many of the newest checkpoints of each run are not compacted. Default: 3."""

    push_deltas = _plain(config_file.PUSH_DELTAS)
    """Whether a push to object storage, including the pushes of a mirror, sends differences from existing blobs.

    If the encoded form of a blob is at most half as large as the blob, the push sends the encoded form, which is
    decoded with a blob of an earlier checkpoint, its base. For example, the checkpoint of a step of reinforcement
    learning is sent with about a hundredth of its size. Pushes and readers need ``ckstore[compact]``. The remote keeps
    a base as long as another blob is decoded with it. Default: False.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            BadInput: Always.
        """
        raise BadInput(f"{self!r} cannot be pickled", hint="pickle the store, and use the config of its copy")

    def __repr__(self) -> str:
        return f"<settings of {self._context.layout.root}>"

    def _act_places(self) -> tuple[object, ...]:
        return self._context.act_places()


@api_call
def set_run_policy(config: StoreConfig, run: str, policy: RetentionPolicy | None) -> None:
    """Set the policy of one run, or of the runs that match a glob; if None, remove it.

    Other policies in `StoreConfig.retention_by_run` are kept, including policies that another process sets meanwhile.
    """
    context = config._context  # noqa: SLF001 - of this module
    new = {} if policy is None else _json_by_run(context, config_file.BY_RUN, {run: policy})
    context.check_writable()

    def changed(found: Any) -> dict[str, Any] | None:
        config_file.policies_by_run(context.layout, {config_file.BY_RUN: found})  # refuses a damaged setting
        return {name: stored for name, stored in (found or {}).items() if name != run} | new or None

    config_file.edit(context.layout, config_file.BY_RUN, changed)
