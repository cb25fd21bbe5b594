"""Where the store is: ``--store``, else CKSTORE_PATH, else ``.ckstore`` here or above, as in git.

The library is always given a path; it reads neither the environment nor the working directory.

A store that was only found must belong to this user, as git's ``safe.directory`` has it: else who works in a
directory that others may write to, such as ``/tmp``, would work in a store that one of them prepared. To name a store
is consent, and so is CKSTORE_SAFE_DIRECTORY.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ckstore.errors import StoreNotFound, UnsafePlace
from ckstore.model.names import expanded

DEFAULT_NAME = ".ckstore"
VARIABLE = "CKSTORE_PATH"
SAFE_VARIABLE = "CKSTORE_SAFE_DIRECTORY"
SUDO_VARIABLE = "SUDO_UID"
ANY = "*"
MARK = "store.json"


def find_store(option: Path | None, environ: Mapping[str, str], here: Path) -> Path:
    """Return the path of the store that is meant: of ``--store``, the environment, or the nearest from `here` up."""
    # Raises StoreNotFound: there is none; UnsafePlace: the nearest is another user's, and nothing says that it is safe.
    named = option or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    named = None if named is None else expanded(named)
    if named is not None:
        source = "--store" if option else VARIABLE
        if is_store(here / named):
            return here / named
        import shlex  # for an error alone

        msg = f"there is no store at {here / named} (from {source})"
        if is_store(here / named / DEFAULT_NAME):  # the directory of the project was named
            raise StoreNotFound(msg, hint=f"there is one in it: --store {shlex.quote(str(named / DEFAULT_NAME))}")
        raise StoreNotFound(msg, hint=f"check the path, or make a store: ckstore init {shlex.quote(str(named))}")
    # The nearest, as in git, even if it may not be used: a store further up is another project's.
    for directory in (here, *here.parents):
        found = directory / DEFAULT_NAME
        if _may_be_store(found):
            _check_owner(found, environ)
            return found
    msg = f"there is no {DEFAULT_NAME} in {here} or above"
    raise StoreNotFound(msg, hint=f"make one with ckstore init, or say where it is: --store PATH or {VARIABLE}")


def _may_be_store(found: Path) -> bool:
    """Whether a store is there, or something that this user may not look into."""
    try:
        return (found / MARK).is_file()
    except PermissionError:
        # A directory that may not be looked into is said to be so, not passed over for another one above.
        return os.path.lexists(found)


def _check_owner(found: Path, environ: Mapping[str, str]) -> None:
    """Raise unless a store that was only found is this user's, or listed as safe."""
    me = os.geteuid()
    # Settings in a prepared store could drop checkpoints, and its blobs be chosen by its owner.
    trusted = {me}
    if me == 0 and environ.get(SUDO_VARIABLE, "").isdecimal():  # as git: who called sudo is who works here
        trusted.add(int(environ[SUDO_VARIABLE]))
    # The link and its target: who made the link chooses which store it is.
    owner = found.lstat().st_uid
    if owner in trusted:
        owner = found.stat().st_uid
    if owner in trusted or _listed(found, environ.get(SAFE_VARIABLE, "")):
        return
    import shlex

    quoted = shlex.quote(str(found))
    msg = (
        f"{found} belongs to {_user(owner)}, and this process runs as {_user(me)}; ckstore does not "
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
