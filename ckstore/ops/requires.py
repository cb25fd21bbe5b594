"""Record in ``store.json`` the features that a reader must understand, before data that needs them is written."""

from __future__ import annotations

from dataclasses import replace

from ckstore.fs import files
from ckstore.model.seal import to_write
from ckstore.model.settings.settings import SETTINGS_MAX_BYTES, parse_settings
from ckstore.objects.documents import atomic_file
from ckstore.ops.context import Context
from ckstore.ops.settings_file import read_settings


def require(context: Context, entry: str) -> None:
    """Add an entry to `requires` in ``store.json`` durably, unless it exists."""
    if entry in context.settings.requires:
        return
    layout = context.layout
    with atomic_file.changing(layout) as lock, files.opened_directory(layout.root) as fd:
        settings = read_settings(layout.path)
        if entry not in settings.requires:
            settings = replace(settings, requires=(*settings.requires, entry))
            data = to_write(settings, parse_settings, most_bytes=SETTINGS_MAX_BYTES, where=str(layout.settings))
            atomic_file.replace_file(layout, lock, fd, layout.settings.name, data)
    context.settings = settings
