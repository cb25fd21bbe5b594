"""The file ``config.json``: what its settings say, and how one is changed. Callers see it as `config.StoreConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from ckstore.errors import BadInput, CkstoreError
from ckstore.fs import files
from ckstore.model.document import refuse
from ckstore.model.names import MAX_SEQUENCE
from ckstore.model.seal import MEMBER, read, to_write
from ckstore.model.settings.settings import parse_config, render_config
from ckstore.model.times import duration_s
from ckstore.objects.documents import atomic_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckstore.model.settings.retention import Budget, RetentionPolicy
    from ckstore.objects.layout import Layout

T = TypeVar("T")
PolicyMember = Literal["retention", "make_room", "keep_local", "keep_remote"]
RETENTION: Final = "retention"
MAKE_ROOM: Final = "make_room"
KEEP_LOCAL: Final = "keep_local"
KEEP_REMOTE: Final = "keep_remote"
BY_RUN: Final = "retention_by_run"
BUDGET: Final = "budget"
# A thread takes 2 MiB of private memory in a save: a mistyped number must not take gigabytes.
THREADS_MOST = 256
# A policy has some hundred bytes; a file that another user made huge is refused before it is read into memory.
_MAX_BYTES = 2**20
_YEAR_S = 366 * 86400.0


def _number(least: float, most: float) -> Callable[[object], bool]:
    # `True` is an `int` to Python, and would pass as one second or one thread.
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _whole(least: int, most: int) -> Callable[[object], bool]:
    is_in_range = _number(least, most)
    return lambda value: isinstance(value, int) and is_in_range(value)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_duration(value: object) -> bool:
    try:
        return isinstance(value, str | float | int) and duration_s(value, "it") <= _YEAR_S
    except BadInput:
        return False


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A setting that is one plain value."""

    name: str  # its member in ``config.json``
    default: T  # what holds where there is no such member
    wanted: str  # what it may be, in words
    fits: Callable[[object], bool]  # whether a value can be it

    def of(self, config: Mapping[str, Any], where: str) -> T:
        """Return its value in settings that were read; `where` is their path, for messages."""
        value = config.get(self.name)
        if value is not None and not self.fits(value):
            refuse(where, self.name, self.wanted, value)
        return self.default if value is None else value


READ_BACK = Setting("read_back", default=False, wanted="true or false", fits=_is_bool)
# Within the noise of a save that writes nothing: docs/adr/0010-rereading.md.
RECHECK_SHARE = Setting("recheck_share", 0.005, "a number from 0 to 1", _number(0, 1))
# Longer than what an NFS client remembers, and than a save stands still on a busy cluster: docs/adr/0011-grace.md.
GRACE_S = Setting("grace_s", 3600.0, "seconds from 0 to a year", _number(0, _YEAR_S))
# A person finds a mistake on the next day; a rule drops with each save, and is seldom one: docs/adr/0022-undo.md.
UNDO_BY_HAND_S = Setting("undo_by_hand_s", 86400.0, "seconds from 0 to a year", _number(0, _YEAR_S))
UNDO_BY_RULE_S = Setting("undo_by_rule_s", 0.0, "seconds from 0 to a year", _number(0, _YEAR_S))
SHARED: Setting[bool | None] = Setting("shared", None, "true or false", _is_bool)
THREADS: Setting[int | None] = Setting(
    "threads", None, f"a whole number from 1 to {THREADS_MOST}", _whole(1, THREADS_MOST)
)
MIRROR: Setting[str | None] = Setting(
    "mirror", None, "the name of a remote", lambda value: isinstance(value, str) and bool(value)
)
MIRROR_AGE_S = Setting("mirror_age_s", 600.0, "seconds from 1 to a year", _number(1, _YEAR_S))
MIRROR_BYTES_S: Setting[int | None] = Setting(
    "mirror_bytes_s", None, "a whole number of bytes a second above 0", _whole(1, 2**53)
)
# A service that is away for some saves costs the disk as much as three checkpoints, not one for each save.
MIRROR_KEEP = Setting("mirror_keep", 3, "a whole number from 0 to 10000", _whole(0, 10_000))
# Raised by the mirror when it finds greater numbers there, so that later saves come after these.
LEAST_SEQUENCE = Setting("least_sequence", 0, f"a whole number from 0 to {MAX_SEQUENCE}", _whole(0, MAX_SEQUENCE))
CACHE_BYTES: Setting[int | None] = Setting("cache_bytes", None, "a whole number of bytes, 0 or more", _whole(0, 2**53))
# Off until asked for: what was compacted needs an extra to be read.
COMPACT_AFTER: Setting[float | str | None] = Setting(
    "compact_after", None, "a duration such as '12h', or seconds", _is_duration
)
COMPACT_SHARE = Setting("compact_share", 0.1, "a number from 0.001 to 1", _number(0.001, 1))
COMPACT_KEEP = Setting("compact_keep", 3, "a whole number from 1 to 10000", _whole(1, 10_000))
# Off: the mirror is the last copy when a node dies, and plain blobs need nothing but their own bytes (docs/adr/0024).
PUSH_DELTAS = Setting("push_deltas", default=False, wanted="true or false", fits=_is_bool)


@dataclass(frozen=True, slots=True)
class SaveChecks:
    """What a save reads from the disk to compare it, and which number it may have."""

    read_back: bool = False  # whether what it writes is read back before it counts as durable
    # How much of what it relies on it reads again, as a share of the bytes of the state; 0: nothing.
    recheck_share: float = RECHECK_SHARE.default
    least_sequence: int = 0  # its number in the order of commits is greater
    # Why the settings could not be read, so that all of it is; None if they could.
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
    """Return the settings; without a ``config.json`` there are none."""
    try:
        data = files.read_file(layout.config, most_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return {}
    return read(data, _parse, str(layout.config)).settings


def policy_of(layout: Layout, member: PolicyMember, config: Mapping[str, Any] | None = None) -> RetentionPolicy | None:
    """Return the policy that a setting keeps; None: there is none."""
    stored = (read_config(layout) if config is None else config).get(member)
    if stored is None:
        return None
    from ckstore.model.settings.retention import RetentionPolicy

    return RetentionPolicy.from_json(stored, f"{layout.config}: {member}")


@dataclass(frozen=True, slots=True)
class StoreRules:
    """What a store keeps by itself."""

    default: RetentionPolicy | None  # the policy of runs that have none of their own; None: everything of them stays
    by_run: Mapping[str, RetentionPolicy]  # the policies of single runs, by their names or globs
    budget: Budget | None  # how much all checkpoints may take; None: as much as there is

    def of(self, run: str) -> RetentionPolicy | None:
        """Return the policy of a run: that of its name, else of the longest glob that fits, else the default."""
        if run in self.by_run:
            return self.by_run[run]
        fitting = sorted((glob for glob in self.by_run if fnmatchcase(run, glob)), key=lambda glob: (-len(glob), glob))
        return self.by_run[fitting[0]] if fitting else self.default


def rules_of(layout: Layout, config: Mapping[str, Any] | None = None) -> StoreRules:
    """Return what the settings say about which checkpoints stay; None: they are read."""
    config = read_config(layout) if config is None else config
    return StoreRules(policy_of(layout, RETENTION, config), policies_by_run(layout, config), budget_of(layout, config))


def policies_by_run(layout: Layout, config: Mapping[str, Any] | None = None) -> dict[str, RetentionPolicy]:
    """Return the policies of single runs, by their names or globs."""
    stored = (read_config(layout) if config is None else config).get(BY_RUN)
    if stored is None:
        return {}
    from ckstore.model.settings.retention import RetentionPolicy

    where = f"{layout.config}: {BY_RUN}"
    if not isinstance(stored, dict):
        refuse(str(layout.config), BY_RUN, "an object", stored)
    return {glob: RetentionPolicy.from_json(policy, f"{where}: {glob}") for glob, policy in stored.items()}


def budget_of(layout: Layout, config: Mapping[str, Any] | None = None) -> Budget | None:
    """Return how much all checkpoints may take; None: there is no limit."""
    stored = (read_config(layout) if config is None else config).get(BUDGET)
    if stored is None:
        return None
    from ckstore.model.settings.retention import Budget

    return Budget.from_json(stored, f"{layout.config}: {BUDGET}")


def setting_of(layout: Layout, setting: Setting[T]) -> T:
    """Return the value of one setting."""
    return setting.of(read_config(layout), str(layout.config))


def setting_or_none(layout: Layout, setting: Setting[T]) -> T | None:
    """Return a setting that switches something on; None: it is off, or cannot be read, and what needs it says why."""
    try:
        return setting_of(layout, setting)
    except (CkstoreError, OSError):
        return None


def save_checks_or_all(layout: Layout) -> SaveChecks:
    """Return what a save is to read; all of it, and why, where the settings cannot be read."""
    where = str(layout.config)
    try:
        config = read_config(layout)
        share = float(RECHECK_SHARE.of(config, where))
        return SaveChecks(READ_BACK.of(config, where), share, LEAST_SEQUENCE.of(config, where))
    # Reading more is always right; a save must not fail for a file that only says how much it reads again.
    except (CkstoreError, OSError) as error:
        return SaveChecks(read_back=True, recheck_share=1.0, unread=error)


def edit(layout: Layout, member: str, make: Callable[[Any], object]) -> None:
    """Give one setting the value that `make` returns for the present one (None: there is none); no error changes it."""
    # L3: read and written under one lock, or of two processes that change different settings one change is lost.
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.root) as fd:
        config = read_config(layout)
        value = make(config.pop(member, None))
        if value is not None:
            config[member] = value
        # Parsed again before it is written: a file that no process can read would stop every later save.
        data = to_write(_Document(config), _parse, most_bytes=_MAX_BYTES, where=str(layout.config))
        atomic_file.replace_file(layout, lock, fd, layout.config.name, data)
