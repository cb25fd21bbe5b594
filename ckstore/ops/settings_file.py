"""Read ``store.json``, which describes a store."""

from __future__ import annotations

import stat
from pathlib import Path

from ckstore.errors import StoreNotFound
from ckstore.fs import dirfd_stat, files
from ckstore.model.seal import read
from ckstore.model.settings.settings import SETTINGS_MAX_BYTES, StoreSettings, parse_settings
from ckstore.objects.layout import Layout

NO_DIRECTORY_HINT = "a store is a directory, and this is not one"


def read_settings(root: Path) -> StoreSettings:
    """Return the settings in ``store.json``."""
    path = Layout(root).settings
    try:
        data = files.read_file(path, most_bytes=SETTINGS_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreNotFound(f"there is no store at {root}", hint=_hint(root)) from error
    return read(data, parse_settings, str(path))


def is_store(root: Path) -> bool:
    """Whether a directory is a store, intact or damaged."""
    return dirfd_stat.find(Layout(root).settings) is not None


def _hint(root: Path) -> str:
    """Return advice for a path without a store."""
    if (found := dirfd_stat.find(root)) is not None and not stat.S_ISDIR(found.st_mode):
        return NO_DIRECTORY_HINT
    if dirfd_stat.find(root / "remote.json") is not None:
        return f"it is a remote: Store.open('file://{root}') reads it, ckstore clone lists it in a store"
    inner = root / ".ckstore"  # where the command line creates a store in the directory of a project
    return (
        f"it contains a store: {inner}" if dirfd_stat.find(Layout(inner).settings) else "create one: Store.init(path)"
    )
