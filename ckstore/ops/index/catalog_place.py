"""Choose the place of the catalog: in the store, or in this user's cache if other users or hosts may use the store.

SQLite cannot share a database between hosts. It also trusts the files next to a database, which other users could swap.
Therefore each host has its own catalog, and so does each user if several users may write to the store. This is possible
because the catalog is only an index, which is updated from the directories. If `catalog_path` is outside the store,
other hosts may also have their own catalogs.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from ckstore.catalog import Catalog
from ckstore.errors import BadInput, CatalogUnavailable, CkstoreError, UnsafePlace
from ckstore.fs.host.mounts import examine
from ckstore.model.doctor.place import PlaceFacts, why_of_several_hosts
from ckstore.objects.layout import Layout
from ckstore.ops.api_calls import describe_os_error
from ckstore.ops.config_file import SHARED, setting_of

_NAME = "catalog.db"
_HINT = "catalog_path= names a file on a disk of this host; XDG_CACHE_HOME changes the default location"


def place_of(root: Path) -> tuple[PlaceFacts, tuple[str, ...]]:
    """Return the filesystem of a store with its settings, and notes for the user."""
    # If the settings cannot be read, assume that other hosts use the store. Then nothing is freed.
    place = examine(root)
    try:
        return replace(place, told=setting_of(Layout(root), SHARED)), ()
    except CkstoreError as error:
        reason = error.message
    except OSError as error:
        reason = f"the settings cannot be read: {describe_os_error(error)}"
    consequence = "so other hosts may use the store, and nothing is freed until the settings can be read"
    # This assumption is safe, whereas treating a shared store as local could delete data that other hosts use.
    return replace(place, told=True), (f"{reason}, {consequence}",)


def catalog_of(place: PlaceFacts, root: Path, uuid: str, wanted: Path | None) -> Catalog:
    """Return the catalog of the store at `root` without creating anything.

    Args:
        place: The filesystem of the store.
        root: The store.
        uuid: The uuid of the store.
        wanted: The path that the caller requests, relative to the working directory.

    Raises:
        BadInput: `wanted` is a directory, is in the store under another name, or is in the store although other users
            may write to it or other hosts may use it.
        UnsafePlace: `wanted` is on a shared filesystem, or no safe place for the catalog exists outside the store.
    """
    reason = why_of_several_hosts(place, root) or why_of_several_users(root)
    if wanted is not None:
        path = _wanted(wanted, root)
        existing = next(folder for folder in path.parents if folder.is_dir())
        # Decide by the kind of the filesystem, since a test of SQLite's locks on this host does not cover other hosts.
        found = examine(existing)
        if found.other_hosts:
            msg = f"the catalog cannot be at {path}: {found.kind} is a shared filesystem, which SQLite cannot use"
            raise UnsafePlace(msg, hint=_HINT)
        if path == root / _NAME and reason:
            msg = f"the catalog cannot be in the store: {reason}"
            raise BadInput(msg, hint="omit catalog_path, and the catalog is in this user's cache")
    elif reason:
        path = _default(reason, uuid)
    else:
        path = root / _NAME
    return Catalog(root, path, store=uuid)


def why_of_several_users(root: Path) -> str:
    """Return why other users may write to the store at `root`, or "" if they may not or the store does not exist."""
    try:
        status = os.stat(root)
    except FileNotFoundError:
        return ""
    # This check also applies to the user root, since the owner of the store could swap the files next to root's
    # catalog.
    if status.st_uid != os.geteuid():
        return f"{root} belongs to uid {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to {root}, which has the mode {stat.S_IMODE(status.st_mode):04o}"
    return ""


def _wanted(wanted: Path, root: Path) -> Path:
    # Resolve only the parent, since the file itself must not be a symlink.
    path = wanted.parent.resolve() / wanted.name
    if not wanted.name or path.is_dir():
        msg = f"catalog_path must name the file of a database, got the directory {path}"
        raise BadInput(msg, hint=f"catalog_path={str(path / _NAME)!r}")
    if path.is_relative_to(root) and path != root / _NAME:
        msg = f"catalog_path is in the store {root}, where the catalog is {_NAME}, got {path}"
        raise BadInput(msg, hint="omit catalog_path, or name a file outside the store")
    return path


def _default(reason: str, uuid: str) -> Path:
    from ckstore.fs.host.own_folders import cache_folder

    folder = cache_folder()
    if folder is None:
        msg = (
            f"{reason}, and there is no place for its catalog: this user's cache and the folders for temporary files "
            "are on shared filesystems, or writable for others, or not writable for this user"
        )
        raise UnsafePlace(msg, hint=_HINT)
    # The path contains the uuid and not the path of the store, so that a moved store keeps its catalog, and two stores
    # never share a catalog.
    return folder / uuid / _NAME


def is_private(catalog: Catalog, root: Path) -> bool:
    """Whether the catalog is outside the store at `root`, so that only this user or host uses it."""
    return catalog.path != root / _NAME


def why_other_hosts(place: PlaceFacts, catalog: Catalog, root: Path, wanted: Path | None) -> str:
    """Return why other hosts may use the store at `root`, or an empty string if they cannot."""
    if place.other_hosts:
        return why_of_several_hosts(place, root)
    if place.told is None and wanted is not None and is_private(catalog, root):
        return f"the catalog of {root} is outside it, so other hosts may have their own"
    return ""


def make_folder(catalog: Catalog) -> None:
    """Create the directory of a catalog, accessible to this user only."""
    from ckstore.fs.host.own_folders import make_private

    try:
        make_private(catalog.path.parent)
    except OSError as error:
        msg = f"the directory of the catalog, {catalog.path.parent}, cannot be created: {error.strerror}"
        raise BadInput(msg, hint=_HINT) from error


def refuse_foreign(catalog: Catalog) -> None:
    """Raise if a catalog belongs to another store; an unreadable catalog is accepted, since it is repaired later."""
    try:
        owner = catalog.owner()
    except CatalogUnavailable:
        return
    if owner not in ("", catalog.store):
        msg = f"the catalog {catalog.path} belongs to the store {owner}, but this store is {catalog.store}"
        raise BadInput(msg, hint=f"give each store its own catalog_path, for example …/{catalog.store}/{_NAME}")
