"""The search for the store: ``--store``, CKSTORE_PATH, or the nearest store at or above the current directory.

A directory is used if it is a store itself, like a bare repository of git, or if its ``.ckstore`` is a store.

Commands always pass a path to the library, which does not search for a store.

A store that the user did not name must belong to this user, as with git's ``safe.directory``. Otherwise, another user
could prepare a store in a directory that anyone may write to, such as ``/tmp``, and commands that run below this
directory would use that store. Naming a store is consent, and so is listing it in CKSTORE_SAFE_DIRECTORY.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from ckstore.errors import StoreNotFound, UnsafePlace
from ckstore.model.names import expanded

DEFAULT_NAME = ".ckstore"
VARIABLE = "CKSTORE_PATH"
SAFE_VARIABLE = "CKSTORE_SAFE_DIRECTORY"
SUDO_VARIABLE = "SUDO_UID"
ANY = "*"
MARK = "store.json"
_CHECKPOINTS = "checkpoints"
# The maximum number of entries that are read for a hint, since a directory may have a million files.
_LISTED_MOST = 1000
_NAMED_MOST = 3


def find_store(option: Path | None, environ: Mapping[str, str], here: Path) -> Path:
    """Return the store that ``--store`` or the environment names, or otherwise the nearest one at or above `here`."""
    # This raises StoreNotFound if there is no store, or if two are equally near. It raises UnsafePlace if the nearest
    # store belongs to another user and is not listed as safe.
    named = option or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    if named is not None:
        return _named_store(expanded(named), "--store" if option else VARIABLE, environ, here)
    # As in git, only the nearest store is considered, even if it may not be used. A store further up belongs to
    # another project.
    for directory in (here, *here.parents):
        inner = directory / DEFAULT_NAME
        is_inner = _may_be_store(inner)
        if _is_itself_store(directory):
            if is_inner:  # an earlier version made both; neither may be chosen silently
                msg = f"{directory} is a store, and {inner} is another one"
                raise StoreNotFound(msg, hint=f"name one of them: {_options([directory, inner])}")
            _check_owner(directory, environ)
            return directory
        if is_inner:
            _check_owner(inner, environ)
            return inner
    msg = f"{here} is not in a store, and neither it nor a directory above it has a {DEFAULT_NAME}"
    # Usually a training script made the store "checkpoints", and the shell is in the directory of the script.
    if near := _stores_in(here, environ) or _stores_in(here.parent, environ):
        raise StoreNotFound(msg, hint=f"name a store: {_options(near, here)}")
    raise StoreNotFound(msg, hint=f"make one with ckstore init, or name one: --store PATH or {VARIABLE}")


def _named_store(named: Path, source: str, environ: Mapping[str, str], here: Path) -> Path:
    """Return the path of a store that the user named. No other path is tried."""
    place = here / named
    if is_store(place):
        return place
    import shlex  # only for an error
    from difflib import get_close_matches

    msg = f"there is no store at {place} (from {source})"
    if is_store(place / DEFAULT_NAME):  # the user named the directory of the project
        raise StoreNotFound(msg, hint=f"it contains a store: {_options([named / DEFAULT_NAME])}")
    make = f"ckstore init {shlex.quote(str(named))}"
    beside = {path.name: path for path in _stores_in(place.parent, environ)}
    if near := get_close_matches(place.name, beside, _NAMED_MOST) or list(beside)[:_NAMED_MOST]:
        options = _options([named.with_name(name) for name in near])
        raise StoreNotFound(msg, hint=f"use {options}, or make a new store: {make}")
    raise StoreNotFound(msg, hint=f"check the path, or make a store: {make}")


def _options(paths: list[Path], here: Path | None = None) -> str:
    """Return the options that name some stores, quoted for a shell. Paths below `here` are relative to it."""
    import shlex

    shown = [path.relative_to(here) if here and path.is_relative_to(here) else path for path in paths]
    return " or ".join(f"--store {shlex.quote(str(path))}" for path in shown)


def _is_itself_store(directory: Path) -> bool:
    """Whether a directory that the user did not name is a store. Other programs may also write a ``store.json``."""
    try:
        return (directory / MARK).is_file() and (directory / _CHECKPOINTS).is_dir()
    except PermissionError:  # an unreadable directory cannot be a store of this user
        return False


def _stores_in(directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the stores of trusted users directly in a directory. At most a thousand of its entries are checked."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in islice(entries, _LISTED_MOST))
    except OSError:  # the error already says that no store was found
        return []
    found = [path for path in map(directory.joinpath, names) if _is_itself_store(path)]
    return [path for path in found if _owner_unless_trusted(path, environ) is None]


def _may_be_store(found: Path) -> bool:
    """Whether a path is a store, or a directory that this user may not read."""
    try:
        # Do not use `Path.is_file`, which hides a PermissionError since Python 3.14.
        return stat.S_ISREG((found / MARK).stat().st_mode)
    except PermissionError:
        # Report an unreadable directory to the user instead of skipping it in favour of a store further up.
        return os.path.lexists(found)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


def _owner_unless_trusted(found: Path, environ: Mapping[str, str]) -> int | None:
    """Return the owner of a store, or None if the owner is trusted or the store is listed as safe."""
    me = os.geteuid()
    # The settings of a store that another user prepared could drop checkpoints, and its blobs could hold any data.
    trusted = {me}
    if me == 0 and environ.get(SUDO_VARIABLE, "").isdecimal():  # as in git, the user who called sudo is trusted
        trusted.add(int(environ[SUDO_VARIABLE]))
    # If the path is a symlink, check both the link and its target, since the owner of the link chooses the store.
    owner = found.lstat().st_uid
    if owner in trusted:
        owner = found.stat().st_uid
    if owner in trusted:
        return None
    # The list must contain exactly this path. Targets of symlinks and relative paths do not count.
    listed = environ.get(SAFE_VARIABLE, "").split(":")
    paths = (expanded(entry) for entry in listed if entry != ANY)
    safe = (_place_of(path) for path in paths if path.is_absolute())
    return None if ANY in listed or _place_of(found) in safe else owner


def _check_owner(found: Path, environ: Mapping[str, str]) -> None:
    """Raise `UnsafePlace` unless a store that the user did not name is of a trusted user or is listed as safe."""
    owner = _owner_unless_trusted(found, environ)
    if owner is None:
        return
    import shlex

    quoted = shlex.quote(str(found))
    msg = (
        f"{found} belongs to {_user(owner)}, and this process runs as {_user(os.geteuid())}; ckstore does not "
        "use it without your consent"
    )
    raise UnsafePlace(
        msg,
        hint=f"if you trust its owner, run export {SAFE_VARIABLE}={quoted}, or use --store {quoted} in each command",
    )


def _place_of(path: Path) -> Path:
    plain = Path(os.path.normpath(path))
    return plain.parent.resolve() / plain.name


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def place_for_new(argument: Path | None, option: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the path at which ``ckstore init`` makes a store. The other commands use the same path."""
    named = environ.get(VARIABLE)
    return expanded(argument or option or Path(named or DEFAULT_NAME))


def is_store(path: Path) -> bool:
    """Whether `path` is a store."""
    try:
        (path / MARK).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
