"""The settings of a store that may change: ``config.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput
from ckstore.fs import files
from ckstore.model.document import refuse, shown
from ckstore.model.seal import MEMBER, read, to_write
from ckstore.model.settings.recheck import DEFAULT_SHARE, SHARE_WANTED, is_share
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.settings import parse_config, render_config
from ckstore.objects import atomic_file

if TYPE_CHECKING:
    from ckstore.objects.layout import Layout
    from ckstore.ops.context import Context

RETENTION = "retention"
MAKE_ROOM = "make_room"
READ_BACK = "read_back"
RECHECK_SHARE = "recheck_share"
_CONFIG_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class _Config:
    """The content of ``config.json``."""

    settings: dict[str, Any]

    def render(self) -> bytes:
        return render_config(self.settings)


def _parse(data: bytes, where: str) -> _Config:
    settings = parse_config(data, where)
    settings.pop(MEMBER, None)
    return _Config(settings)


def read_config(layout: Layout) -> dict[str, Any]:
    """Return the settings; without a ``config.json`` there are none.

    Raises:
        NewerFormat: A newer ckstore wrote it.
        CkstoreError: It is damaged.
        OSError: It cannot be read.
    """
    try:
        data = files.read_file(layout.config, most_bytes=_CONFIG_MAX_BYTES)
    except FileNotFoundError:
        return {}
    return read(data, _parse, str(layout.config)).settings


def retention_of(context: Context) -> RetentionPolicy | None:
    """Return the policy of the store that is applied after each save, or None.

    Raises:
        BadInput: It has a rule that this ckstore does not know.
        CkstoreError, OSError: As `read_config`.
    """
    return _policy_of(context, RETENTION)


def make_room_of(context: Context) -> RetentionPolicy | None:
    """Return the policy of the store that may be applied to make room for a save, or None.

    Raises:
        BadInput: It has a rule that this ckstore does not know.
        CkstoreError, OSError: As `read_config`.
    """
    return _policy_of(context, MAKE_ROOM)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a save reads from the disk.

    Attributes:
        read_back: Whether what it writes is read back before it counts as durable.
        recheck_share: How much of what it relies on it reads again, as a share of the bytes of the state; 0: nothing.
    """

    read_back: bool = False
    recheck_share: float = DEFAULT_SHARE


def reading_of(context: Context) -> Reading:
    """Return what a save is to read from the disk.

    Raises:
        BadInput: A setting is not what it must be.
        CkstoreError, OSError: As `read_config`.
    """
    config, where = read_config(context.layout), str(context.layout.config)
    read_back, share = config.get(READ_BACK, False), config.get(RECHECK_SHARE, DEFAULT_SHARE)
    if not isinstance(read_back, bool):
        refuse(where, READ_BACK, "true or false", read_back)
    if not is_share(share):
        refuse(where, RECHECK_SHARE, SHARE_WANTED, share)
    return Reading(read_back, float(share))


def set_retention(context: Context, policy: RetentionPolicy | None) -> None:
    """Keep the policy for after each save in the store, durably, or remove it. Raises as `_change`."""
    _change(context, RETENTION, None if policy is None else policy.to_json())


def set_make_room(context: Context, policy: RetentionPolicy | None) -> None:
    """Keep the policy that may make room for a save in the store, durably, or remove it. Raises as `_change`."""
    _change(context, MAKE_ROOM, None if policy is None else policy.to_json())


def set_read_back(context: Context, *, wanted: bool) -> None:
    """Keep in the store, durably, whether saves read back what they write. Raises as `_change`."""
    _change(context, READ_BACK, True if wanted else None)


def set_recheck_share(context: Context, share: float | None) -> None:
    """Keep in the store, durably, how much of what they rely on saves read again; None: the default. As `_change`.

    Raises:
        BadInput: It is no number from 0 to 1.
    """
    if share is not None and not is_share(share):
        raise BadInput(f"share must be {SHARE_WANTED}, got {shown(share)}")
    _change(context, RECHECK_SHARE, None if share is None else float(share))


def _policy_of(context: Context, member: str) -> RetentionPolicy | None:
    stored = read_config(context.layout).get(member)
    return None if stored is None else RetentionPolicy.from_json(stored, f"{context.layout.config}: {member}")


def _change(context: Context, member: str, value: object) -> None:
    """Give one setting a value, or remove it (None); other settings stay as they are.

    Raises:
        BadInput: The new settings could not be read again; nothing was changed.
        CkstoreError: The present settings are damaged, or others write to the store all the time; nothing was changed.
        OSError: The system refused.
    """
    context.check_writable()
    layout = context.layout
    with atomic_file.changing(layout), files.opened_directory(layout.root) as fd:
        config = read_config(layout)
        config.pop(member, None)
        if value is not None:
            config[member] = value
        data = to_write(_Config(config), _parse, most_bytes=_CONFIG_MAX_BYTES, where=str(layout.config))
        atomic_file.replace_file(context.layout, fd, layout.config.name, data)
