"""The file ``config.json``: what its settings say, and how one is changed. Callers see it as `config.StoreConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from ckstore.errors import CkstoreError
from ckstore.fs import files
from ckstore.model.document import refuse
from ckstore.model.seal import MEMBER, read, to_write
from ckstore.model.settings.settings import parse_config, render_config
from ckstore.objects.documents import atomic_file

if TYPE_CHECKING:
    from ckstore.model.settings.retention import RetentionPolicy
    from ckstore.objects.layout import Layout

RETENTION: Final = "retention"
MAKE_ROOM: Final = "make_room"
READ_BACK: Final = "read_back"
RECHECK_SHARE: Final = "recheck_share"
GRACE_S: Final = "grace_s"
SHARED: Final = "shared"
DEFAULT_SHARE = 0.005
"""Of the bytes of a state: what is within the noise of a save that writes nothing (docs/adr/0010-rereading.md)."""
SHARE_WANTED = "a number from 0 to 1"
DEFAULT_GRACE_S = 3600.0
GRACE_WANTED = "seconds from 0 to a year"
_GRACE_MOST_S = 366 * 86400.0
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SaveChecks:
    """What a save reads from the disk to compare it.

    Attributes:
        read_back: Whether what it writes is read back before it counts as durable.
        recheck_share: How much of what it relies on it reads again, as a share of the bytes of the state; 0: nothing.
        unread: Why the settings could not be read, so that all of it is; None if they could.
    """

    read_back: bool = False
    recheck_share: float = DEFAULT_SHARE
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
    """Return the settings; without a ``config.json`` there are none.

    Raises:
        NewerFormat: A newer ckstore wrote it.
        CkstoreError: It is damaged.
        OSError: It cannot be read.
    """
    try:
        data = files.read_file(layout.config, most_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return {}
    return read(data, _parse, str(layout.config)).settings


def policy_of(layout: Layout, member: Literal["retention", "make_room"]) -> RetentionPolicy | None:
    """Return the policy that is applied after each save, or to make room for one; None: there is none.

    Raises:
        BadInput: It has a rule that this ckstore does not know.
        CkstoreError, OSError: As `read_config`.
    """
    stored = read_config(layout).get(member)
    if stored is None:
        return None
    from ckstore.model.settings.retention import RetentionPolicy

    return RetentionPolicy.from_json(stored, f"{layout.config}: {member}")


def save_checks_of(layout: Layout) -> SaveChecks:
    """Return what a save is to read from the disk.

    Raises:
        BadInput: A setting is not what it must be.
        CkstoreError, OSError: As `read_config`.
    """
    config, where = read_config(layout), str(layout.config)
    read_back, share = config.get(READ_BACK, False), config.get(RECHECK_SHARE, DEFAULT_SHARE)
    if not isinstance(read_back, bool):
        refuse(where, READ_BACK, "true or false", read_back)
    if not is_share(share):
        refuse(where, RECHECK_SHARE, SHARE_WANTED, share)
    return SaveChecks(read_back, float(share))


def save_checks_or_all(layout: Layout) -> SaveChecks:
    """Return what a save is to read; all of it, and why, where the settings cannot be read."""
    try:
        return save_checks_of(layout)
    except (CkstoreError, OSError) as error:
        return SaveChecks(read_back=True, recheck_share=1.0, unread=error)


def grace_of(layout: Layout) -> float:
    """Return how many seconds what is dropped waits on a filesystem that other hosts have.

    Raises:
        BadInput: The setting is not what it must be.
        CkstoreError, OSError: As `read_config`.
    """
    seconds = read_config(layout).get(GRACE_S, DEFAULT_GRACE_S)
    if not is_grace(seconds):
        refuse(str(layout.config), GRACE_S, GRACE_WANTED, seconds)
    return float(seconds)


def shared_of(layout: Layout) -> bool | None:
    """Return whether other hosts use the store, as its settings say; None: they do not say.

    Raises:
        BadInput: The setting is not what it must be.
        CkstoreError, OSError: As `read_config`.
    """
    told: bool | None = read_config(layout).get(SHARED)
    if not (told is None or isinstance(told, bool)):
        refuse(str(layout.config), SHARED, "true or false", told)
    return told


def change(layout: Layout, member: str, value: object) -> None:
    """Give one setting a value, or remove it (None); other settings stay as they are.

    Raises:
        BadInput: The new settings could not be read again; nothing was changed.
        CkstoreError: The present settings are damaged, or others write to the store all the time; nothing was changed.
        OSError: The system refused.
    """
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.root) as fd:
        config = read_config(layout)
        config.pop(member, None)
        if value is not None:
            config[member] = value
        data = to_write(_Document(config), _parse, most_bytes=_MAX_BYTES, where=str(layout.config))
        atomic_file.replace_file(layout, lock, fd, layout.config.name, data)


def is_share(value: object) -> bool:
    """Whether a value can be the share that a save reads again."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def is_grace(value: object) -> bool:
    """Whether a value can be the seconds that what is dropped waits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _GRACE_MOST_S
