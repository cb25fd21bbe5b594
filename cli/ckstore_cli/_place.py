"""Where the store is: ``--store``, else CKSTORE_PATH, else ``.ckstore`` here or above, as in git.

The library is always given a path; it reads neither the environment nor the working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ckstore.errors import StoreNotFound

DEFAULT_NAME = ".ckstore"
VARIABLE = "CKSTORE_PATH"
MARK = "store.json"


def find_store(option: Path | None, environ: Mapping[str, str], here: Path) -> Path:
    """Return the path of the store that is meant.

    Args:
        option: The value of ``--store``; None: not given.
        environ: The environment; an empty CKSTORE_PATH counts as none.
        here: An absolute directory; it and its parents are looked through.

    Raises:
        StoreNotFound: There is none; the message says where was looked, and why there.
        OSError: The place that was named cannot be looked at.
    """
    named = option or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    if named is not None:
        source = "--store" if option else VARIABLE
        if is_store(here / named):
            return here / named
        msg = f"there is no store at {here / named} (from {source})"
        raise StoreNotFound(msg, hint=f"check the path, or make a store: ckstore init {named}")
    for directory in (here, *here.parents):
        if (directory / DEFAULT_NAME / MARK).is_file():
            return directory / DEFAULT_NAME
    msg = f"there is no {DEFAULT_NAME} in {here} or above"
    raise StoreNotFound(msg, hint=f"make one with ckstore init, or say where it is: --store PATH or {VARIABLE}")


def place_for_new(argument: Path | None, option: Path | None, environ: Mapping[str, str]) -> Path:
    """Return where ``ckstore init`` makes a store: where the other commands will look for it."""
    named = environ.get(VARIABLE)
    return argument or option or Path(named or DEFAULT_NAME)


def is_store(path: Path) -> bool:
    """Whether a store is at `path`.

    Raises:
        OSError: It cannot be looked at, for example because of permissions.
    """
    try:
        (path / MARK).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
