"""The address of a mirror as users write it: a URL, a directory, or the name of a remote."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from ckstore.errors import BadInput
from ckstore.fs import dirfd_stat
from ckstore.ops.context import Context
from ckstore.remote import keys
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.mirror.ownership import learn_order
from ckstore.remote.remote_only.lost_description import refuse_claimed
from ckstore.remote.remote_opener import named_remote, refuse_store, settings_there
from ckstore.remote.service.folder import check_folder
from ckstore.remote.service.remote_entries import RemoteEntry, entries, entry_named, open_objects
from ckstore.remote.service.target import parse_target

_NAME = "mirror"


def is_name(mirror: str | os.PathLike[str]) -> bool:
    """Whether the text is the name of a remote, and neither a URL nor a directory."""
    return isinstance(mirror, str) and os.sep not in mirror and "://" not in mirror


def settings_at(root: Path, mirror: str | os.PathLike[str]) -> tuple[str, int] | None:
    """Return the hash and the chunk size of the remote at an address that a new store is to use as its mirror.

    Return None if there is no remote at the address and one can be created.

    Raises:
        RemoteError: The service does not answer, or nothing can be written. The store must then not be created, because
            without the checkpoints of its mirror it would start the training from the beginning.
        BadInput: The address is only a name, the directory of a store, or a directory that cannot be created or used.
    """
    if is_name(mirror):
        msg = f"a new store has no remote named {mirror}"
        raise BadInput(msg, hint="give the mirror as a URL or a directory with a slash: s3://BUCKET/PREFIX, ./mirror")
    target = parse_target(mirror)
    if target.kind == "directory":
        if dirfd_stat.resolved(target.path) == dirfd_stat.resolved(root):
            raise BadInput(f"{mirror} is this store itself", hint="name another directory")
        refuse_store(target)
        if not check_folder(target):  # the directory is created after the store, so that a failure leaves nothing
            return None
    if (found := settings_there(target, _NAME)) is None:
        objects = open_objects(target)
        refuse_claimed(objects, target, claims_at(objects))
        # If the bucket is missing or read-only, fail now, so that no store without its mirror is left behind.
        key = f"{keys.PROBE}{uuid.uuid4().hex}-new"
        objects.send(key, b"1")
        objects.delete([key])
    return found


def entry_of(context: Context, mirror: str | os.PathLike[str]) -> RemoteEntry | None:
    """Return the remote at this address, or None if the store has none. No request is made.

    Raises:
        NoSuchRemote: The address is a name, and the store has no remote of that name.
    """
    if is_name(mirror):
        return entry_named(context.layout, str(mirror))
    target = parse_target(mirror)
    return next((entry for entry in entries(context.layout).values() if entry.target == target), None)


def free_name(context: Context, mirror: str | os.PathLike[str]) -> str:
    """Return an unused name for a mirror. Raise `BadInput` if the address is the directory of a store."""
    refuse_store(parse_target(mirror))
    taken = entries(context.layout)
    names = (_NAME if number == 1 else f"{_NAME}{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def learn_mirror(context: Context, name: str) -> None:
    """Make later saves of a store follow, in commit order, all checkpoints of its runs on its new mirror."""
    learn_order(context, named_remote(context, name, writing=False))
