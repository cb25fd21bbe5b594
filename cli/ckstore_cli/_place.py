"""Where the store is: ``--store``, else CKSTORE_PATH, else the nearest of the current directory and those above it.

A directory counts if it is a store itself, as a bare repository of git does, or if its ``.ckstore`` is one.

The library is always given a path; it reads neither the environment nor the working directory.

A store that was only found must belong to this user, as git's ``safe.directory`` has it: else who works in a
directory that others may write to, such as ``/tmp``, would work in a store that one of them prepared. To name a store
is consent, and so is CKSTORE_SAFE_DIRECTORY.
"""

from __future__ import annotations

import os
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
# A hint is not worth reading all of a directory of a million files.
_LISTED_MOST = 1000
_NAMED_MOST = 3


def find_store(option: Path | None, environ: Mapping[str, str], here: Path) -> Path:
    """Return the path of the store: of ``--store``, the environment, or the nearest at or above `here`."""
    # Raises StoreNotFound: there is none, or two are equally near; UnsafePlace: the nearest is another user's, and
    # nothing says that it is safe.
    named = option or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    if named is not None:
        return _named_store(expanded(named), "--store" if option else VARIABLE, environ, here)
    # The nearest, as in git, even if it may not be used: a store further up is another project's.
    for directory in (here, *here.parents):
        inner = directory / DEFAULT_NAME
        is_inner = _may_be_store(inner)
        if _is_itself_store(directory):
            if is_inner:  # earlier versions made one there: neither may be taken silently
                msg = f"{directory} is a store, and {inner} is another one"
                raise StoreNotFound(msg, hint=f"name one of them: {_options([directory, inner])}")
            _check_owner(directory, environ)
            return directory
        if is_inner:
            _check_owner(inner, environ)
            return inner
    msg = f"{here} is not in a store, and neither it nor a directory above it has a {DEFAULT_NAME}"
    # A training script that made "checkpoints" and a shell in the directory of the script: the usual case.
    if near := _stores_in(here, environ) or _stores_in(here.parent, environ):
        raise StoreNotFound(msg, hint=f"name a store: {_options(near, here)}")
    raise StoreNotFound(msg, hint=f"make one with ckstore init, or name one: --store PATH or {VARIABLE}")


def _named_store(named: Path, source: str, environ: Mapping[str, str], here: Path) -> Path:
    """Return the path of a store that the user named; nothing else is tried."""
    place = here / named
    if is_store(place):
        return place
    import shlex  # for an error alone
    from difflib import get_close_matches

    msg = f"there is no store at {place} (from {source})"
    if is_store(place / DEFAULT_NAME):  # the directory of the project was named
        raise StoreNotFound(msg, hint=f"there is one in it: {_options([named / DEFAULT_NAME])}")
    make = f"ckstore init {shlex.quote(str(named))}"
    beside = {path.name: path for path in _stores_in(place.parent, environ)}
    if near := get_close_matches(place.name, beside, _NAMED_MOST) or list(beside)[:_NAMED_MOST]:
        options = _options([named.with_name(name) for name in near])
        raise StoreNotFound(msg, hint=f"name a store beside it: {options}; or make a new one: {make}")
    raise StoreNotFound(msg, hint=f"check the path, or make a store: {make}")


def _options(paths: list[Path], here: Path | None = None) -> str:
    """Return the options that name some stores, as for a shell; relative to `here` where they are below it."""
    import shlex

    shown = [path.relative_to(here) if here and path.is_relative_to(here) else path for path in paths]
    return " or ".join(f"--store {shlex.quote(str(path))}" for path in shown)


def _is_itself_store(directory: Path) -> bool:
    """Whether a directory that no one named is a store; a file of that name alone may be of any program."""
    try:
        return (directory / MARK).is_file() and (directory / _CHECKPOINTS).is_dir()
    except PermissionError:  # a closed directory cannot be a store of this user
        return False


def _stores_in(directory: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the stores of trusted users directly in a directory, at most a thousand of whose entries are tried."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in islice(entries, _LISTED_MOST))
    except OSError:  # the error that names the stores says already that none was found
        return []
    found = [path for path in map(directory.joinpath, names) if _is_itself_store(path)]
    return [path for path in found if _owner_unless_trusted(path, environ) is None]


def _may_be_store(found: Path) -> bool:
    """Whether a store is there, or something that this user may not look into."""
    try:
        return (found / MARK).is_file()
    except PermissionError:
        # A directory that may not be looked into is said to be so, not passed over for another one above.
        return os.path.lexists(found)


def _owner_unless_trusted(found: Path, environ: Mapping[str, str]) -> int | None:
    """Return the other user whose store, or link to one, was found; None if it is this user's, or listed as safe."""
    me = os.geteuid()
    # Settings in a prepared store could drop checkpoints, and its blobs be chosen by its owner.
    trusted = {me}
    if me == 0 and environ.get(SUDO_VARIABLE, "").isdecimal():  # as git: who called sudo is who works here
        trusted.add(int(environ[SUDO_VARIABLE]))
    # The link and its target: who made the link chooses which store it is.
    owner = found.lstat().st_uid
    if owner in trusted:
        owner = found.stat().st_uid
    return None if owner in trusted or _listed(found, environ.get(SAFE_VARIABLE, "")) else owner


def _check_owner(found: Path, environ: Mapping[str, str]) -> None:
    """Raise unless a store that was only found is this user's, or listed as safe."""
    owner = _owner_unless_trusted(found, environ)
    if owner is None:
        return
    import shlex

    quoted = shlex.quote(str(found))
    msg = (
        f"{found} belongs to {_user(owner)}, and this process runs as {_user(os.geteuid())}; ckstore does not "
        "use it unless you say so"
    )
    raise UnsafePlace(
        msg,
        hint=f"if you trust its owner: export {SAFE_VARIABLE}={quoted}; or name it in each command: --store {quoted}",
    )


def _listed(found: Path, listed: str) -> bool:
    """Whether the list names this very place; where a symlink leads to does not count, nor do relative paths."""
    paths = (expanded(entry) for entry in listed.split(":") if entry != ANY)
    safe = (_place_of(path) for path in paths if path.is_absolute())
    return ANY in listed.split(":") or _place_of(found) in safe


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
    """Return where ``ckstore init`` makes a store: where the other commands will look for it."""
    named = environ.get(VARIABLE)
    return expanded(argument or option or Path(named or DEFAULT_NAME))


def is_store(path: Path) -> bool:
    """Whether a store is at `path`."""
    try:
        (path / MARK).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
