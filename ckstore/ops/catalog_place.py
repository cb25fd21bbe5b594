"""Where the catalog of a store lies: in the store, or on this host when other hosts have the store's filesystem too.

SQLite cannot share a database between hosts, and the catalog is an index: each host has its own and catches up from
the directories. One that lies outside of its store says that others may have theirs, so such a store counts as shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckstore.catalog import Catalog, CatalogUnavailable
from ckstore.errors import BadInput, UnsafePlace
from ckstore.fs.place import examine

if TYPE_CHECKING:
    from pathlib import Path

    from ckstore.model.doctor.place import PlaceFacts

_NAME = "catalog.db"
_HINT = "catalog_path= names a file on a disk of this host; XDG_CACHE_HOME moves the default"


def catalog_of(place: PlaceFacts, root: Path, uuid: str, wanted: Path | None) -> Catalog:
    """Return the catalog of the store at `root`; nothing is made.

    Args:
        place: The filesystem of the store.
        root: Of the store.
        uuid: Of the store.
        wanted: What the caller asked for; relative to the working directory.

    Raises:
        BadInput: `wanted` is a directory, or in the store under another name than its own.
        UnsafePlace: It would lie on a shared filesystem.
    """
    if wanted is not None:
        path = _wanted(wanted, root)
        _refuse_shared(path)
    elif place.shared:
        path = _default(place, root, uuid)
    else:
        path = root / _NAME
    return Catalog(root, path, store=uuid)


def _wanted(wanted: Path, root: Path) -> Path:
    path = wanted.parent.resolve() / wanted.name
    if not wanted.name or path.is_dir():
        msg = f"catalog_path names the file of a database, got the directory {path}"
        raise BadInput(msg, hint=f"catalog_path={str(path / _NAME)!r}")
    if path.is_relative_to(root) and path != root / _NAME:
        msg = f"catalog_path lies in the store {root}, where the catalog is {_NAME}; got {path}"
        raise BadInput(msg, hint="leave catalog_path away, or name a file outside of the store")
    return path


def _default(place: PlaceFacts, root: Path, uuid: str) -> Path:
    from ckstore.fs.own_folders import cache_folder

    folder = cache_folder()
    if folder is None:
        msg = (
            f"{root} is on {place.kind}, a shared filesystem, and there is no place for its catalog: the user's cache "
            "and the folders for temporary files are shared, too, or others may write there"
        )
        raise UnsafePlace(msg, hint=_HINT)
    return folder / uuid / _NAME


def _refuse_shared(path: Path) -> None:
    there = next(folder for folder in path.parents if folder.is_dir())
    found = examine(there)
    if found.shared:
        msg = f"the catalog cannot lie at {path}: {found.kind} is a shared filesystem, which SQLite cannot use"
        raise UnsafePlace(msg, hint=_HINT)


def why_shared(place: PlaceFacts, catalog: Catalog, root: Path) -> str:
    """Return why other hosts may be at work in the store at `root`; empty if they cannot be."""
    if place.shared:
        return f"{root} is on {place.kind}, a shared filesystem"
    if catalog.path != root / _NAME:
        return f"the catalog of {root} lies outside of it, so others may have theirs"
    return ""


def make_folder(catalog: Catalog) -> None:
    """Make the directory that a catalog lies in, for this user alone.

    Raises:
        BadInput: That did not work.
    """
    from ckstore.fs.own_folders import make_private

    try:
        make_private(catalog.path.parent)
    except OSError as error:
        msg = f"the directory of the catalog, {catalog.path.parent}, cannot be made: {error.strerror}"
        raise BadInput(msg, hint=_HINT) from error


def refuse_foreign(catalog: Catalog) -> None:
    """Raise if a catalog is that of another store; one that cannot be read is looked at by whoever mends it.

    Raises:
        BadInput: It is.
    """
    try:
        owner = catalog.owner()
    except CatalogUnavailable:
        return
    if owner not in ("", catalog.store):
        msg = f"the catalog {catalog.path} is that of the store {owner}; this store is {catalog.store}"
        raise BadInput(msg, hint=f"give each store a catalog_path of its own, for example …/{catalog.store}/{_NAME}")
