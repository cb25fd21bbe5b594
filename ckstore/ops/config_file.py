"""The file ``config.json``: read, changed, and what opening asks of it. What its members mean is in `config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckstore.fs import files
from ckstore.model.document import refuse
from ckstore.model.seal import MEMBER, read, to_write
from ckstore.model.settings.settings import parse_config, render_config
from ckstore.objects.documents import atomic_file

if TYPE_CHECKING:
    from ckstore.objects.layout import Layout

SHARED = "shared"
_MAX_BYTES = 2**20


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
