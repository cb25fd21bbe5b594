"""Read and change the settings in ``config.json``; `config.StoreConfig` is the interface for users."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from ckstore.errors import BadInput, CkstoreError
from ckstore.fs import dirfd_stat, files
from ckstore.model.document import refuse
from ckstore.model.names import MAX_SEQUENCE
from ckstore.model.seal import MEMBER, read, to_write
from ckstore.model.settings.patience import PATIENCE_MOST_S, RETRIES_MOST, OnFailure, SavePatience
from ckstore.model.settings.settings import parse_config, render_config
from ckstore.model.times import duration_s
from ckstore.objects.documents import atomic_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ckstore.model.settings.retention import Budget, RetentionPolicy
    from ckstore.objects.layout import Layout

T = TypeVar("T")
PolicyMember = Literal["retention", "make_room", "keep_local", "keep_remote"]
RETENTION: Final = "retention"
MAKE_ROOM: Final = "make_room"
KEEP_LOCAL: Final = "keep_local"
BY_RUN: Final = "retention_by_run"
BUDGET: Final = "budget"
SET_BY: Final = "set_by"
"""The member with the uid of the user who set each rule. Its keys are names of rules, or names in `BY_RUN`."""
# The limit protects against a mistyped number, since each thread uses 2 MiB of private memory in a save.
THREADS_MOST = 256
# The maximum size of the file, which usually has a few hundred bytes. A larger file is not read into memory.
_MAX_BYTES = 2**20
YEAR_S = 366 * 86400.0


def number_in(least: float, most: float) -> Callable[[object], bool]:
    """Return a function that checks that a value is a number in a range."""
    # `True` is an `int` in Python and must not be accepted as one second or one thread.
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def whole_in(least: int, most: int) -> Callable[[object], bool]:
    """Return a function that checks that a value is a whole number in a range."""
    is_in_range = number_in(least, most)
    return lambda value: isinstance(value, int) and is_in_range(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_duration(value: object) -> bool:
    try:
        return isinstance(value, str | float | int) and duration_s(value, "it") <= YEAR_S
    except BadInput:
        return False


def _is_on_failure(value: object) -> bool:
    return value in ("raise", "warn")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A setting with one plain value."""

    name: str  # its member in ``config.json``
    default: T  # its value if the member is missing
    wanted: str  # the valid values, in words
    fits: Callable[[object], bool]  # whether a value is valid

    def of(self, config: Mapping[str, Any], where: str) -> T:
        """Return the value of the setting in `config`; `where` is the path of the file, for messages."""
        value = config.get(self.name)
        if value is not None and not self.fits(value):
            refuse(where, self.name, self.wanted, value)
        return self.default if value is None else value


READ_BACK = Setting("read_back", default=False, wanted="true or false", fits=_is_bool)
# With this share, rereading takes less time than the usual variation between saves that write nothing:
# docs/adr/0010-rereading.md.
RECHECK_SHARE = Setting("recheck_share", 0.005, "a number from 0 to 1", number_in(0, 1))
# An NFS client caches, and a save on a busy cluster pauses, for less than this time: docs/adr/0011-grace.md.
GRACE_S = Setting("grace_s", 3600.0, "seconds from 0 to a year", number_in(0, YEAR_S))
# A person may notice a mistake on the next day. Rules drop at each save and rarely by mistake: docs/adr/0022-undo.md.
UNDO_BY_HAND_S = Setting("undo_by_hand_s", 86400.0, "seconds from 0 to a year", number_in(0, YEAR_S))
UNDO_BY_RULE_S = Setting("undo_by_rule_s", 0.0, "seconds from 0 to a year", number_in(0, YEAR_S))
# Most evaluations take less time. A hung evaluator protects its checkpoint for this time: docs/how-to/evaluators.md.
EVALUATION_PATIENCE_S = Setting("evaluation_patience_s", 3600.0, "seconds from 0 to a year", number_in(0, YEAR_S))
SHARED: Setting[bool | None] = Setting("shared", None, "true or false", _is_bool)
THREADS: Setting[int | None] = Setting(
    "threads", None, f"a whole number from 1 to {THREADS_MOST}", whole_in(1, THREADS_MOST)
)
# If the mirror has greater sequence numbers, this setting is raised, so that later saves get even greater numbers.
LEAST_SEQUENCE = Setting("least_sequence", 0, f"a whole number from 0 to {MAX_SEQUENCE}", whole_in(0, MAX_SEQUENCE))
CACHE_BYTES: Setting[int | None] = Setting(
    "cache_bytes", None, "a whole number of bytes, 0 or more", whole_in(0, 2**53)
)
# A larger share would take more than 5 % of the processor time of a save: docs/adr/0033-health.md.
HEALTH_SHARE = Setting("health_share", 0.0625, "a number from 0 to 1", number_in(0, 1))
# This is off by default, because reading compacted checkpoints requires an extra.
COMPACT_AFTER: Setting[float | str | None] = Setting(
    "compact_after", None, "a duration such as '12h', or seconds", _is_duration
)
COMPACT_SHARE = Setting("compact_share", 0.1, "a number from 0.001 to 1", number_in(0.001, 1))
COMPACT_KEEP = Setting("compact_keep", 3, "a whole number from 1 to 10000", whole_in(1, 10_000))
# This is off by default. If a node dies, the mirror has the last copy, and plain blobs need no other blob to be decoded
# (docs/adr/0024).
PUSH_DELTAS = Setting("push_deltas", default=False, wanted="true or false", fits=_is_bool)
SAVE_RETRIES = Setting(
    "save_retries", SavePatience().retries, f"a whole number from 0 to {RETRIES_MOST}", whole_in(0, RETRIES_MOST)
)
WAIT_FOR_SPACE_S = Setting(
    "wait_for_space_s", SavePatience().wait_for_space_s, "seconds from 0 to 30 days", number_in(0, PATIENCE_MOST_S)
)
ON_FAILED_SAVE: Setting[OnFailure] = Setting("on_failed_save", "raise", "'raise' or 'warn'", _is_on_failure)
FAILED_SAVES_MOST = Setting("failed_saves_most", 3, "a whole number from 1 to 10000", whole_in(1, 10_000))


@dataclass(frozen=True, slots=True)
class SaveChecks:
    """The checks of a save, and the lower bound of its sequence number."""

    read_back: bool = False  # whether written data is read back before it counts as durable
    # The share of the size of the state that is read again from reused blobs; 0 for none.
    recheck_share: float = RECHECK_SHARE.default
    least_sequence: int = 0  # the sequence number of the save must be greater than this
    # The share of new, large data in which values that are not finite are counted; 0 for none.
    health_share: float = HEALTH_SHARE.default
    # Why the settings could not be read, so that all checks are made; None if they were read.
    unread: CkstoreError | OSError | None = None


@dataclass(frozen=True, slots=True)
class _Document:
    """The content of ``config.json``."""

    settings: dict[str, Any]

    def render(self) -> bytes:
        return render_config(self.settings)


def _parse(data: bytes, where: str) -> _Document:
    settings = parse_config(data, where)
    settings.pop(MEMBER, None)
    return _Document(settings)


def read_config(layout: Layout) -> dict[str, Any]:
    """Return the settings, or an empty dict if there is no ``config.json``."""
    try:
        data = files.read_file(layout.config, most_bytes=_MAX_BYTES)
    except FileNotFoundError:
        layout.check_exists(layout.settings)
        return {}
    return read(data, _parse, str(layout.config)).settings


def policy_of(layout: Layout, member: PolicyMember, config: Mapping[str, Any] | None = None) -> RetentionPolicy | None:
    """Return the policy in a setting, or None if it is not set."""
    stored = (read_config(layout) if config is None else config).get(member)
    if stored is None:
        return None
    from ckstore.model.settings.retention import RetentionPolicy

    return RetentionPolicy.from_json(stored, f"{layout.config}: {member}")


@dataclass(frozen=True, slots=True)
class StoreRules:
    """The rules by which a store drops checkpoints, as far as they apply to the saves of this user.

    Attributes:
        default: The policy of runs without their own policy. If None, all checkpoints of these runs are kept.
        by_run: The policies of single runs, by name or glob.
        budget: The maximum size of all checkpoints, or None.
        own_only: The names of the rules that apply only to the checkpoints of this user, who set these rules and is not
            the owner of the store. A name is ``retention``, ``budget``, or a name in `by_run`.
    """

    default: RetentionPolicy | None
    by_run: Mapping[str, RetentionPolicy]
    budget: Budget | None
    own_only: frozenset[str] = frozenset()

    def of(self, run: str) -> RetentionPolicy | None:
        """Return the policy of a run: by its name, otherwise by the longest matching glob, otherwise the default."""
        name = self._name_of(run)
        return self.default if name is None else self.by_run[name]

    def is_own_only(self, run: str) -> bool:
        """Whether the policy of a run applies only to the checkpoints of this user."""
        return (self._name_of(run) or RETENTION) in self.own_only

    def _name_of(self, run: str) -> str | None:
        if run in self.by_run:
            return run
        fitting = sorted((glob for glob in self.by_run if fnmatchcase(run, glob)), key=lambda glob: (-len(glob), glob))
        return fitting[0] if fitting else None


def rules_of(layout: Layout, config: Mapping[str, Any] | None = None) -> StoreRules:
    """Return the rules in the settings, which are read unless `config` contains them.

    If a member of a group sets a rule, it applies only to the checkpoints of that member, and only that member's saves
    apply it. Therefore rules of other members are not returned. Rules of the owner of the store and of root apply to
    all checkpoints.
    """
    config = read_config(layout) if config is None else config
    default, by_run = policy_of(layout, RETENTION, config), policies_by_run(layout, config)
    budget = budget_of(layout, config)
    if default is None and not by_run and budget is None:
        return StoreRules(None, {}, None)
    scopes = rule_scopes(layout, config, [RETENTION, BUDGET, *by_run])
    return StoreRules(
        None if scopes[RETENTION] == "none" else default,
        {name: policy for name, policy in by_run.items() if scopes[name] != "none"},
        None if scopes[BUDGET] == "none" else budget,
        frozenset(name for name, scope in scopes.items() if scope == "own"),
    )


Scope = Literal["all", "own", "none"]
"""The checkpoints to which this user's saves apply a rule: all, only this user's, or none (a rule of another user)."""


def rule_scopes(layout: Layout, config: Mapping[str, Any], rules: Iterable[str]) -> dict[str, Scope]:
    """Return the scopes of rules by their names."""
    root = dirfd_stat.status(layout.root)
    own = dirfd_stat.current_user()
    by = config.get(SET_BY)
    authors = by if isinstance(by, dict) else {}
    if root.st_mode & stat.S_ISVTX:
        # With the sticky bit, only the owner of the file is certain, since the content of the file may name any user.
        found = dirfd_stat.find(layout.config)
        authors = dict.fromkeys(rules, root.st_uid if found is None else found.st_uid)
    scopes: dict[str, Scope] = {}
    for rule in rules:
        author = authors.get(rule, root.st_uid)
        scopes[rule] = "all" if author in (root.st_uid, 0) else "own" if author == own else "none"
    return scopes


def make_room_of(layout: Layout) -> tuple[RetentionPolicy | None, bool]:
    """Return the policy for a save that lacks space, and whether it applies only to this user's checkpoints."""
    config = read_config(layout)
    policy = policy_of(layout, MAKE_ROOM, config)
    if policy is None:
        return None, False
    scope = rule_scopes(layout, config, [MAKE_ROOM])[MAKE_ROOM]
    return None if scope == "none" else policy, scope == "own"


def policies_by_run(layout: Layout, config: Mapping[str, Any] | None = None) -> dict[str, RetentionPolicy]:
    """Return the policies of single runs, by name or glob."""
    stored = (read_config(layout) if config is None else config).get(BY_RUN)
    if stored is None:
        return {}
    from ckstore.model.settings.retention import RetentionPolicy

    where = f"{layout.config}: {BY_RUN}"
    if not isinstance(stored, dict):
        refuse(str(layout.config), BY_RUN, "an object", stored)
    return {glob: RetentionPolicy.from_json(policy, f"{where}: {glob}") for glob, policy in stored.items()}


def budget_of(layout: Layout, config: Mapping[str, Any] | None = None) -> Budget | None:
    """Return the maximum size of all checkpoints, or None."""
    stored = (read_config(layout) if config is None else config).get(BUDGET)
    if stored is None:
        return None
    from ckstore.model.settings.retention import Budget

    return Budget.from_json(stored, f"{layout.config}: {BUDGET}")


def setting_of(layout: Layout, setting: Setting[T]) -> T:
    """Return the value of one setting."""
    return setting.of(read_config(layout), str(layout.config))


def setting_or_none(layout: Layout, setting: Setting[T]) -> T | None:
    """Return an optional setting, or None if it is off or cannot be read; the code that needs it reports errors."""
    try:
        return setting_of(layout, setting)
    except (CkstoreError, OSError):
        return None


def settings_or_defaults(layout: Layout, *settings: Setting[Any]) -> list[Any]:
    """Return the values of settings, reading the file once; a setting that cannot be read has its default."""
    # The code that needs the settings reports errors in them.
    try:
        config, where = read_config(layout), str(layout.config)
    except (CkstoreError, OSError):
        return [setting.default for setting in settings]
    found = []
    for setting in settings:
        try:
            found.append(setting.of(config, where))
        except CkstoreError:
            found.append(setting.default)
    return found


def save_checks_or_all(layout: Layout) -> SaveChecks:
    """Return the checks of a save, or all checks and the reason if the settings cannot be read."""
    where = str(layout.config)
    try:
        config = read_config(layout)
        share = float(RECHECK_SHARE.of(config, where))
        return SaveChecks(
            READ_BACK.of(config, where), share, LEAST_SEQUENCE.of(config, where), float(HEALTH_SHARE.of(config, where))
        )
    # Making all checks is always correct, and a save must not fail because the settings of its checks are damaged.
    except (CkstoreError, OSError) as error:
        return SaveChecks(read_back=True, recheck_share=1.0, unread=error)


def save_patience_of(layout: Layout) -> SavePatience:
    """Return how long a save is retried, or the defaults if the settings cannot be read."""
    try:
        config, where = read_config(layout), str(layout.config)
        return SavePatience(SAVE_RETRIES.of(config, where), WAIT_FOR_SPACE_S.of(config, where))
    except (CkstoreError, OSError):  # the caller reports the failed save, whose cause may be the same disk error
        return SavePatience()


def edit(layout: Layout, member: str, make: Callable[[Any], object]) -> None:
    """Set one setting to the result of `make`, whose argument is the current value, or None if it is not set.

    After an error, the setting is unchanged.
    """
    # Read and write under one lock, so that changes of two processes to different settings are not lost (law L3).
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.root) as fd:
        config = read_config(layout)
        before = config.pop(member, None)
        value = make(before)
        if value is not None:
            config[member] = value
        if member in (RETENTION, MAKE_ROOM, BY_RUN, BUDGET):
            _note_author(layout, config, member, before, value)
        # `to_write` parses the data before it is written, so that the file always remains readable.
        data = to_write(_Document(config), _parse, most_bytes=_MAX_BYTES, where=str(layout.config))
        atomic_file.replace_file(layout, lock, fd, layout.config.name, data)


def _note_author(layout: Layout, config: dict[str, Any], member: str, before: object, value: object) -> None:
    """Record the user who set a rule, unless this user is the owner of the store or root.

    The rule then applies only to the checkpoints of that user.
    """
    authors = dict(by) if isinstance(by := config.pop(SET_BY, None), dict) else {}
    old, new = ({member: before}, {member: value})
    if member == BY_RUN:
        old, new = (dict(one) if isinstance(one, dict) else {} for one in (before, value))
    root_uid, uid = dirfd_stat.status(layout.root).st_uid, dirfd_stat.current_user()
    for name in old.keys() | new.keys():
        if new.get(name) is None or (old.get(name) != new.get(name) and uid in (root_uid, 0)):
            authors.pop(name, None)
        elif old.get(name) != new.get(name):
            authors[name] = uid
    if authors:
        config[SET_BY] = authors
