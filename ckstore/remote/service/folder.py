"""Checks and creates the directory of a new remote."""

from __future__ import annotations

from dataclasses import replace

from ckstore.errors import BadInput
from ckstore.fs import dirfd_stat, files, links
from ckstore.ops.open.opening import refuse_inside
from ckstore.ops.settings_file import is_store
from ckstore.remote import keys
from ckstore.remote.service.target import Target

_OWN = frozenset(folder.rstrip("/") for folder in keys.FOLDERS) | {keys.INFO, keys.CONDEMNED, "lost+found"}
"""Names in the directory of a remote, and ``lost+found``, which ext4 creates in the root of a filesystem."""


def target_at(target: Target) -> Target:
    """Return a target with the kind ``store`` if its directory is a store, otherwise unchanged."""
    return replace(target, kind="store") if target.kind == "directory" and is_store(target.path) else target


def check_folder(target: Target) -> bool:
    """Return whether the directory of a remote exists. Nothing is created.

    Raises:
        BadInput: The directory contains files of other programs, is inside a store, or cannot be created.
    """
    path = target.path
    refuse_inside(path)
    try:
        if not dirfd_stat.exists(path):
            if not dirfd_stat.may_write(path.parent):
                raise _not_made(target)
            return False
        names = {*dirfd_stat.names(path)}
    except OSError as error:
        raise _not_made(target, error.strerror or str(error)) from error
    others = sorted(name for name in names - _OWN if not name.startswith("."))
    if others and keys.INFO not in names:
        msg = f"{path} holds other files, such as {others[0]}, and a remote needs a directory of its own"
        raise BadInput(msg, hint=f"choose a new one: {path}/remote")
    return True


def make_folder(target: Target) -> None:
    """Create the directory of a new remote, unless it exists. Raise the same errors as `check_folder`."""
    if check_folder(target):
        return
    try:
        # The new directory is private, like that of a store. To share a remote, the user creates its directory with
        # another mode, and all files in it get the permissions of the directory.
        links.make_directory(target.path, mode=0o700)
        files.sync_name(target.path)
    except OSError as error:
        raise _not_made(target, error.strerror or str(error)) from error


def _not_made(target: Target, reason: str = "") -> BadInput:
    msg = f"no remote could be created at {target}{reason and f': {reason}'}"
    return BadInput(msg, hint="its parent directory must exist and be writable")
