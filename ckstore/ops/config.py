"""The settings of a store that may change, as callers read and set them: ``store.config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput, CatalogUnavailable
from ckstore.model.document import shown
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import metrics_there
from ckstore.ops import config_file
from ckstore.ops.acts import act, places_of
from ckstore.ops.context import annotated, read_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckstore.ops.context import Context


class StoreConfig:
    """What a store does by itself: `Store.config`. Attributes are read from and written to ``config.json`` at once.

    Setting one is durable, and holds for every process. None, or ``del store.config.retention``, gives it its default
    again. Another name is an `AttributeError`. Setting one in a store that was opened for reading raises `SaveFailed`.
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    @act
    def retention(self) -> RetentionPolicy | None:
        """The policy that is applied to a run after each save to it, by every process; None: everything stays.

        What it drops is freed. What there is when it is set stays until the next save of its run;
        ``store.apply(store.plan_retention())`` does it at once.

        Raises:
            BadInput: The settings are damaged, hold a rule that this ckstore does not know, or are given no policy.
            NewerFormat: A newer ckstore wrote them.
        """
        return config_file.policy_of(self._context.layout, config_file.RETENTION)

    @retention.setter
    @act
    def retention(self, policy: RetentionPolicy | None) -> None:
        _change(self._context, config_file.RETENTION, _json_of_policy(self._context, config_file.RETENTION, policy))

    @property
    @act
    def make_room(self) -> RetentionPolicy | None:
        """The policy by which a save that would not fit may drop checkpoints first; None: such a save fails.

        The policy says what has to stay, of every run. Of the others the oldest are dropped and freed, no more than the
        save lacks, and none if all of them would not be enough. What was dropped is in ``info.warnings``. Tags, pins,
        open readers and the newest valid checkpoint of each run stay whatever the policy says.

        Raises:
            BadInput: The settings are damaged, hold a rule that this ckstore does not know, or are given no policy.
            NewerFormat: A newer ckstore wrote them.
        """
        return config_file.policy_of(self._context.layout, config_file.MAKE_ROOM)

    @make_room.setter
    @act
    def make_room(self, policy: RetentionPolicy | None) -> None:
        _change(self._context, config_file.MAKE_ROOM, _json_of_policy(self._context, config_file.MAKE_ROOM, policy))

    @property
    @act
    def read_back(self) -> bool:
        """Whether a save reads what it wrote, past the page cache, and compares it before it counts as durable.

        It finds a disk that takes bytes and keeps other ones, at the cost of reading once what is new. Default: False.

        Raises:
            BadInput: The settings are damaged, or are given something else than a bool or None.
            NewerFormat: A newer ckstore wrote them.
        """
        return config_file.save_checks_of(self._context.layout).read_back

    @read_back.setter
    @act
    def read_back(self, wanted: bool | None) -> None:
        if wanted is not None and not isinstance(wanted, bool):
            raise BadInput(f"read_back must be True, False or None, got {shown(wanted)}")
        _change(self._context, config_file.READ_BACK, wanted or None)

    @property
    @act
    def recheck_share(self) -> float:
        """How much of what it finds in the store a save reads again, as a share of the bytes of its state; 0: nothing.

        It is read from the disk, what was read longest ago first, at least 256 KiB a save: of an unchanged state every
        byte is compared within 1 / `recheck_share` saves and two. What rotted is written again from the state and put
        right in every checkpoint; ``info.warnings`` says so. Default: 0.005.

        Raises:
            BadInput: The settings are damaged, or are given no number from 0 to 1.
            NewerFormat: A newer ckstore wrote them.
        """
        return config_file.save_checks_of(self._context.layout).recheck_share

    @recheck_share.setter
    @act
    def recheck_share(self, share: float | None) -> None:
        if share is not None and not config_file.is_share(share):
            raise BadInput(f"recheck_share must be {config_file.SHARE_WANTED}, got {shown(share)}")
        _change(self._context, config_file.RECHECK_SHARE, None if share is None else float(share))

    @property
    @act
    def grace_s(self) -> float:
        """How many seconds what is dropped waits in ``trash/`` on a filesystem that other hosts have, too.

        So long a reader on another host may go on with a checkpoint that was dropped, and a save there may stand still.
        Elsewhere it does not matter. Default: 3600.

        Raises:
            BadInput: The settings are damaged, or are given no number of seconds from 0 to a year.
            NewerFormat: A newer ckstore wrote them.
        """
        return config_file.grace_of(self._context.layout)

    @grace_s.setter
    @act
    def grace_s(self, seconds: float | None) -> None:
        if seconds is not None and not config_file.is_grace(seconds):
            raise BadInput(f"grace_s must be {config_file.GRACE_WANTED}, got {shown(seconds)}")
        _change(self._context, config_file.GRACE_S, None if seconds is None else float(seconds))

    @property
    @act
    def shared(self) -> bool | None:
        """Whether other hosts use the store; None: its filesystem says so, as ``ckstore doctor`` shows.

        True is for a filesystem that ckstore does not know to be shared, False for one that only this host uses,
        such as a program's (FUSE): then what is dropped is freed at once, and what other hosts have open is lost. It
        holds for what is opened afterwards: set it before other hosts open the store. Default: None.

        Raises:
            BadInput: The settings are damaged, or are given something else than a bool or None.
            NewerFormat: A newer ckstore wrote them.
        """
        return config_file.shared_of(self._context.layout)

    @shared.setter
    @act
    def shared(self, used_by_others: bool | None) -> None:
        if used_by_others is not None and not isinstance(used_by_others, bool):
            raise BadInput(f"shared must be True, False or None, got {shown(used_by_others)}")
        _change(self._context, config_file.SHARED, used_by_others)

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def __repr__(self) -> str:
        return f"<settings of {self._context.layout.root}>"

    def _act_places(self) -> tuple[object, ...]:
        return places_of(self._context.layout.root.path)


def _json_of_policy(context: Context, member: str, policy: RetentionPolicy | None) -> dict[str, Any] | None:
    if policy is None:
        return None
    if not isinstance(policy, RetentionPolicy):
        raise BadInput(f"{member} must be a RetentionPolicy or None, got {shown(policy)}")
    _refuse_misspelt(context, member, policy)
    return policy.to_json()


def _refuse_misspelt(context: Context, member: str, policy: RetentionPolicy) -> None:
    """Refuse a metric that no checkpoint has where there are other metrics.

    The catalog's word is enough to take it; only the directories refuse it. A new store, and one whose checkpoints
    have no metrics yet, takes any name.
    """
    wanted = {best.metric for best in policy.bests}
    try:
        there = [info.metrics for info in context.catalog.infos()] if wanted else []
    except CatalogUnavailable:  # a rule that cannot be judged drops nothing anyway
        return
    if not _lacking(wanted, there):
        return
    there = [
        annotated(context, info).metrics
        for run, step, _ in context.layout.published()
        if (info := read_info(context, run, step)) is not None
    ]
    if lacking := _lacking(wanted, there):
        metric = min(lacking)
        msg = f"{member}: no checkpoint has the metric {metric}; the setting stays as it was"
        raise BadInput(msg, hint=metrics_there(there, metric))


def _lacking(wanted: set[str], there: Iterable[Mapping[str, float]]) -> set[str]:
    """Return which of the metrics none has, if any has a metric at all."""
    known = {metric for metrics in there for metric in metrics}
    return wanted - known if known else set()


def _change(context: Context, member: str, value: object) -> None:
    """Give one setting a value, or remove it (None); see `config_file.change`."""
    context.check_writable()
    config_file.change(context.layout, member, value)
