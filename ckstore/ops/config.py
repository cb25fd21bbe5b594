"""The settings of a store that may change, as callers read and set them: ``store.config``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from ckstore.errors import BadInput, CatalogUnavailable
from ckstore.model.best import metrics_there
from ckstore.model.document import shown
from ckstore.model.settings.retention import Budget, RetentionPolicy
from ckstore.objects.layout import Layout
from ckstore.ops import config_file
from ckstore.ops.api_calls import api_call, places_of
from ckstore.ops.config_file import Setting
from ckstore.ops.context import Context, annotated, read_info
from ckstore.tracebacks import short_tracebacks

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
    """Refuse a metric that no checkpoint has where there are other metrics."""
    # The catalog's word is enough to take it; only the directories refuse it. A new store, and one whose checkpoints
    # have no metrics yet, takes any name.
    wanted = {best.metric for best in policy.bests}
    try:
        metrics = [info.metrics for info in context.catalog.infos()] if wanted else []
    except CatalogUnavailable:  # a rule that cannot be judged drops nothing anyway
        return
    if not _lacking(wanted, metrics):
        return
    # The catalog's rows may be old or wrong, so a refusal is decided by the manifests and annotations themselves.
    metrics = [
        annotated(context, info).metrics
        for key, _ in context.layout.published()
        if (info := read_info(context, key)) is not None
    ]
    if lacking := _lacking(wanted, metrics):
        metric = min(lacking)
        msg = f"{member}: no checkpoint has the metric {metric}; the setting stays as it was"
        raise BadInput(msg, hint=metrics_there(metrics, metric))


def _lacking(wanted: set[str], all_metrics: Iterable[Mapping[str, float]]) -> set[str]:
    """Return which of the metrics none has, if any has a metric at all."""
    known = {metric for metrics in all_metrics for metric in metrics}
    return wanted - known if known else set()


def _mirror_named(context: Context, member: str, name: object) -> object:
    remotes = config_file.read_config(context.layout).get("remotes") or {}
    if not isinstance(name, str) or name not in remotes:
        there = (
            f"its remotes: {', '.join(sorted(remotes))}" if remotes else "ckstore remote add NAME s3://BUCKET/PREFIX"
        )
        raise BadInput(f"{member}: the store has no remote {shown(name)}", hint=there)
    target = remotes[name].get("target") if isinstance(remotes[name], dict) else None
    if isinstance(target, dict) and target.get("kind") == "store":
        hint = f"copy it into a remote: ckstore remote convert {name} NEW DIRECTORY"
        raise BadInput(f"{member}: {shown(name)} is a store, and a store is never pushed to", hint=hint)
    return name


class _Attribute(Generic[T]):
    """An attribute that is one setting: reading and changing it are acts of its name.

    Args:
        member: In ``config.json``.
        read: Gives its value, from the directory of a store.
        to_json: Checks a new value, and gives what is written.
    """

    def __init__(
        self, member: str, read: Callable[[Layout], T], to_json: Callable[[Context, str, object], object]
    ) -> None:
        def get(config: StoreConfig) -> T:
            # From the file at each reading: another process may have changed it since this handle was opened.
            return read(config._context.layout)  # noqa: SLF001 - of this module

        def change(config: StoreConfig, value: T | None) -> None:
            context = config._context  # noqa: SLF001 - of this module
            new = None if value is None else to_json(context, member, value)
            # After the value was checked: a wrong value is the caller's mistake whatever the store is opened for.
            context.check_writable()
            config_file.edit(context.layout, member, lambda _: new)
            vars(context).pop(member, None)  # what was read before, such as the number of threads

        for function in (get, change):
            function.__name__, function.__qualname__ = member, f"StoreConfig.{member}"
        self._get, self._change = api_call(get), api_call(change)

    @short_tracebacks
    def __get__(self, config: StoreConfig, _: object = None) -> T:
        return self._get(config)

    @short_tracebacks
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
    """What a store does by itself: `Store.config`. Attributes are read from and written to ``config.json`` at once.

    Setting one is durable, and holds for every process. None, or ``del store.config.retention``, gives it its default
    again. Another name is an `AttributeError`. Setting one in a store that was opened for reading raises `SaveFailed`;
    a value that it cannot have, or a damaged file of settings, is `BadInput`, and settings of a newer ckstore are
    `NewerFormat`.
    """

    __slots__ = ("_context",)

    retention = _policy(config_file.RETENTION)
    """The policy that is applied to a run after each save to it, by every process; None: everything stays.

    The save frees what it drops. Checkpoints that exist when it is set stay until the next save of their run;
    ``store.prune()`` does it at once.
    """

    retention_by_run = _Attribute(config_file.BY_RUN, config_file.policies_by_run, _json_by_run)
    """Policies of single runs, by a name or a glob: ``{"sweep-*": RetentionPolicy(keep_last=1)}``.

    For a run the one of its name applies, else that of the longest glob that fits it, else `retention`.
    """

    budget = _Attribute(config_file.BUDGET, config_file.budget_of, _json_of_budget)
    """How much the blobs of all checkpoints may take on the disk: ``Budget("2TB", low_bytes="1.8TB")``; None: no limit.

    Above it a save drops the oldest checkpoints of all runs once it is durable, those that are the best by a rule of
    their run last. Tags, pins, open readers and the newest valid checkpoint of each run stay: `prune` and the warning
    of the save say if they alone are more.
    """

    make_room = _policy(config_file.MAKE_ROOM)
    """The policy by which a save that would not fit may drop checkpoints first; None: none is dropped.

    Before anything is dropped, and also without a policy, such a save lets go of bytes that the `mirror` has, the
    oldest first; `keep_local`, else this policy, else the newest of each run stays.
    The policy says what has to stay, of every run. Of the others the oldest are dropped and freed, no more than the
    save lacks, and none if all of them would not be enough. ``info.warnings`` names the dropped ones. Tags, pins,
    open readers and the newest valid checkpoint of each run stay whatever the policy says.
    """

    read_back = _plain(config_file.READ_BACK)
    """Whether a save reads what it wrote, past the page cache, and compares it before it counts as durable.

    It finds a disk that takes bytes and keeps other ones, at the cost of reading once what is new. Default: False.
    """

    recheck_share = _plain(config_file.RECHECK_SHARE)
    """How much of what it finds in the store a save reads again, as a share of the bytes of its state; 0: nothing.

    It is read from the disk, what was read longest ago first, at least 256 KiB a save: of an unchanged state every
    byte is compared within 1 / `recheck_share` saves and two. What rotted is written again from the state and put
    right in every checkpoint; ``info.warnings`` says so. Default: 0.005.
    """

    save_retries = _plain(config_file.SAVE_RETRIES)
    """How often a save is tried again after a failure of the storage that can pass, each time as a new save; 0: never.

    Such are an I/O error, a stale file handle, a server or a network that did not answer, and a disk or a quota that
    became full in the middle. The pauses are 0.25, 1, 4 and 16 s, then 30 s each. ``info.warnings`` says so.
    Default: 2.
    """

    wait_for_space_s = _plain(config_file.WAIT_FOR_SPACE_S)
    """How many seconds a save waits for space on a full disk, after it has freed what it may; 0: it fails at once.

    Default: 0.
    """

    on_failed_save = _plain(config_file.ON_FAILED_SAVE)
    """What the integrations do if the storage fails a save: ``raise`` ends the training, ``warn`` lets it go on.

    `Store.save` and `Store.commit` have an argument for that, since their callers use what they return. Default:
    ``raise``.
    """

    failed_saves_most = _plain(config_file.FAILED_SAVES_MOST)
    """How many saves in a row may fail with ``warn``; the next failure is raised. Default: 3."""

    health_share = _plain(config_file.HEALTH_SHARE)
    """In what share of new data a save looks for values that are not finite; 0: it does not, and 1: in all of it.

    A share below 1 is of tensors above 2 MiB: of each at least 2 MiB of every chunk are looked at, in each save other
    ones, and where such a value is found all of the tensor is counted. `CheckpointInfo.unhealthy` and
    `CheckpointInfo.unchanged` say what was found; with 0 neither is known. Default: 0.0625.
    """

    grace_s = _plain(config_file.GRACE_S)
    """How many seconds what is dropped waits in ``trash/`` on a filesystem that other hosts have, too.

    So long a reader on another host may go on with a checkpoint that was dropped, and a save there may stand still.
    Elsewhere it does not matter. Default: 3600.
    """

    undo_by_hand_s = _plain(config_file.UNDO_BY_HAND_S)
    """How many seconds `undelete` can bring back what `delete` and `prune` dropped; 0: it is freed at once.

    It keeps its bytes meanwhile. ``gc(now=True)`` and a save that finds no room free it earlier. Where other hosts use
    the store, too, `grace_s` is that time. Default: 86400, a day.
    """

    undo_by_rule_s = _plain(config_file.UNDO_BY_RULE_S)
    """As `undo_by_hand_s`, for what a policy drops after a save, and for what a save replaces. Default: 0.

    What a budget or `make_room` drops is freed at once, since its space is needed.
    """

    evaluation_patience_s = _plain(config_file.EVALUATION_PATIENCE_S)
    """For how many seconds an evaluation keeps its checkpoint from being dropped; see `Store.follow`.

    After that a rule may drop the checkpoint, and says so. On a shared filesystem the checkpoint is also given to an
    evaluator on another host, if the lock of the first one is not seen there. Default: 3600.
    """

    shared = _plain(config_file.SHARED)
    """Whether other hosts use the store; None: its filesystem says so, as ``ckstore doctor`` shows.

    True is for a filesystem that ckstore does not know to be shared, False for one that only this host uses,
    such as a program's (FUSE): then what is dropped is freed at once, and what other hosts have open is lost. It
    holds for what is opened afterwards: set it before other hosts open the store. Default: None.
    """

    threads = _plain(config_file.THREADS)
    """How many threads a save, a load, a checkout or a verification uses; None: as many as the machine has use for.

    That is four, and half of the cores where there are more than eight, up to sixteen. Set it where a rank has its own
    share of the cores of a machine, and no process affinity that says so; other handles that are open keep theirs.
    Default: None.
    """

    mirror = _Attribute(
        config_file.MIRROR.name, lambda layout: config_file.setting_of(layout, config_file.MIRROR), _mirror_named
    )
    """The remote that gets every checkpoint after it is durable here; None: none does.

    A process of its own pushes, the newest first, and neither delays nor fails a save. It is started by a save and by
    an opening for writing that finds something missing there, and outlives the training.
    """

    mirror_age_s = _plain(config_file.MIRROR_AGE_S)
    """For how many seconds a checkpoint may be only here: `doctor` warns when it was longer. Default: 600."""

    mirror_bytes_s = _plain(config_file.MIRROR_BYTES_S)
    """How many bytes a second the mirror sends at most; None: as many as the link takes. Default: None."""

    mirror_keep = _plain(config_file.MIRROR_KEEP)
    """How many checkpoints of each run that the mirror lacks policies keep, the newest ones; 0: none.

    What `make_room` drops for a save that would not fit is not bound by it. Default: 3.
    """

    cache_bytes = _plain(config_file.CACHE_BYTES)
    """How many bytes of checkpoints that are elsewhere are kept here after they were fetched; 0: none.

    What was used longest ago goes first; `Store.gc`, and a save that finds no room, remove all. None: a tenth of the
    disk. Never more than half of what would be free without them. Default: None.
    """

    keep_local = _policy(config_file.KEEP_LOCAL)
    """Which checkpoints keep their bytes here; None: all do.

    After a push the mirror lets go of the bytes of the others that it was seen to have, as `evict` does: they stay
    listed, and what reads them fetches what it needs. Checkpoints without bytes here do not count, and one with a tag
    or a pin keeps its bytes.
    """

    keep_remote = _policy(config_file.KEEP_REMOTE)
    """Which checkpoints the mirror keeps, of the runs that this store has; None: all of them.

    Others are removed there, and their blobs by `Remotes.prune` once its grace is over; those without bytes here are
    dropped here as well. Of a step that was saved again the checkpoints before the last one go, too. Tags and pins,
    here or there, and the newest checkpoint of each run stay. What this policy keeps is dropped here by no policy
    before it was pushed; a save that finds no room is not bound by that.
    """

    compact_after = _plain(config_file.COMPACT_AFTER)
    """How old a checkpoint is before it is compacted by itself: ``12h``, ``7d`` or seconds; None: only `Store.compact`.

    A process of its own does it, with a share of one processor, below the priority of the training. A save starts it,
    every ten minutes at most, and it ends when nothing is left to do. Tags, pins and `compact_keep` hold. It needs
    ``ckstore[compact]``, as does reading what was compacted. Default: None.
    """

    compact_share = _plain(config_file.COMPACT_SHARE)
    """How much of one processor that takes at most. Default: 0.1."""

    compact_keep = _plain(config_file.COMPACT_KEEP)
    """How many of the newest checkpoints of each run it leaves plain. Default: 3."""

    push_deltas = _plain(config_file.PUSH_DELTAS)
    """Whether a push to object storage, also that of a mirror, sends differences to what is there.

    For each blob that gets at most half as large, the remote has an encoded form that is decoded with a checkpoint
    before: a step of reinforcement learning crosses as about a hundredth. Readers need ``ckstore[compact]``, as this
    side does, and the bases stay there as long as something is decoded with them. Default: False.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    @short_tracebacks
    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def __repr__(self) -> str:
        return f"<settings of {self._context.layout.root}>"

    def _act_places(self) -> tuple[object, ...]:
        return places_of(self._context.layout.root.path)
