"""The directory of a remote, before it is one."""

from __future__ import annotations

from dataclasses import replace

from ckstore.errors import BadInput
from ckstore.fs import files, links, peek
from ckstore.ops.settings_file import is_store
from ckstore.remote import keys
from ckstore.remote.service.target import Target

_OWN = frozenset(folder.rstrip("/") for folder in keys.FOLDERS) | {keys.INFO, keys.CONDEMNED, "lost+found"}
"""What a remote may have at its top, and what ext4 has at that of a filesystem."""


def target_at(target: Target) -> Target:
    """Return what is meant by a directory: the store that is there, or the objects of a remote."""
    return replace(target, kind="store") if target.kind == "directory" and is_store(target.path) else target


def make_folder(target: Target) -> None:
    """Make the directory of a new remote, unless it is there.

    Raises:
        BadInput: It holds files that are no remote's, or it cannot be made.
    """
    path = target.path
    try:
        # As private as a store; of one that is to be shared the user makes the directory, and what is in it is alike.
        if links.make_directory(path, mode=0o700):
            files.sync_name(path)
            return
        names = {*peek.names(path)}
    except OSError as error:
        msg = f"no remote could be made at {path}: {error.strerror or error}"
        raise BadInput(msg, hint="its parent directory must exist and be writable") from error
    others = sorted(name for name in names - _OWN if not name.startswith("."))
    if others and keys.INFO not in names:
        msg = f"{path} holds other files, such as {others[0]}, and a remote has a directory of its own"
        raise BadInput(msg, hint=f"choose a new one: {path}/remote")
