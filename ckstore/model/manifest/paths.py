"""Relative paths of committed files: checked before they are stored, and again before they become paths.

Source: docs/format/v1.md, "Files". A path is made of the names of a Linux filesystem, which are bytes: those that are
not UTF-8 are kept as lone surrogates, as `os.fsdecode` gives them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ckstore.errors import BadInput
from ckstore.model.document import shown

NAME_MAX_BYTES = 255
PATH_MAX_BYTES = 4000
MOST_LEVELS = 256
"""How many directories a file may be in."""
_DELETE = 0x7F
_FIRST_PRINTABLE = 0x20


def check_path(path: object, what: str = "a path") -> str:
    """Return `path`, which is relative, goes down only, and can be made on any Linux filesystem.

    Raises:
        BadInput: It is none of that; the message calls it `what`.
    """
    if not isinstance(path, str) or not path:
        raise BadInput(f"{what} must be a text that is not empty, got {shown(path)}")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise BadInput(f"{what} has characters that no file name can have: {shown(path)}") from error
    if len(encoded) > PATH_MAX_BYTES:
        raise BadInput(f"{what} has {len(encoded)} bytes; a path can have at most {PATH_MAX_BYTES}: {shown(path)}")
    levels = path.count("/")
    if levels > MOST_LEVELS:
        raise BadInput(f"{what} is in {levels} directories; a path can be in at most {MOST_LEVELS}: {shown(path)}")
    for name in path.split("/"):
        _check_name(name, path, what)
    return path


def _check_name(name: str, path: str, what: str) -> None:
    why = ""
    if name in ("", ".", ".."):
        why = "must be relative and go down only"
    elif any(ord(character) < _FIRST_PRINTABLE or ord(character) == _DELETE for character in name):
        why = "must have no control characters"
    elif len(os.fsencode(name)) > NAME_MAX_BYTES:
        why = f"must have names of at most {NAME_MAX_BYTES} bytes"
    if why:
        raise BadInput(f"{what} {why}, got {shown(path)}")


def parent_of(path: str) -> str:
    """Return the path of the directory that holds `path`; empty at the top."""
    return path.rpartition("/")[0]


def differing_in_case(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return two paths that a filesystem which ignores case takes for one; None if there are none."""
    seen: dict[str, str] = {}
    for path in paths:
        other = seen.setdefault(path.casefold(), path)
        if other != path:
            return other, path
    return None
