"""Whose a new file is: what root makes in a store belongs to the owner of the directory that it is made in.

A save by root (sudo, a container without ``--user``) would else leave files in a user's private store that this user
can neither read nor free. Root gives each file away as soon as it is there. To work under the user's id instead
(`seteuid`, `setfsuid`) would take away what else root may do: the first from every thread of a training, both from
reads of files that only root may read.
"""

from __future__ import annotations

import errno
import os

_MAY_NOT_GIVE = frozenset((errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))
"""Root without CAP_CHOWN, as in a container; squashed by an NFS server; an owner who is not in this user namespace."""


# Bit 0 of the capabilities, linux/capability.h.
_CAP_CHOWN = 1 << 0


def current_user() -> int:
    """Return the id of the user that this process acts as."""
    return os.geteuid()


def may_give() -> bool:
    """Whether this process, which is root's, may give files to other users; True where the kernel does not say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            rights = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return True
    return bool(int(rights, 16) & _CAP_CHOWN)


def give_to_owner_of(parent_fd: int, fd: int) -> None:
    """As root, give an open file that was just made to the owner and the group of the directory that it is in."""
    # Where the system does not let root do that it stays as it is: other users' checkpoints do not need it.
    if os.geteuid() != 0:
        return
    owner, made = os.fstat(parent_fd), os.fstat(fd)
    # Root's own stores need no call, which would change the ctime of each blob.
    if (owner.st_uid, owner.st_gid) == (made.st_uid, made.st_gid):
        return
    try:
        os.fchown(fd, owner.st_uid, owner.st_gid)
    except OSError as error:
        if error.errno not in _MAY_NOT_GIVE:
            raise


def give_name_to_owner_of(parent_fd: int, name: str) -> None:
    """As `give_to_owner_of`, for a symlink, which cannot be opened."""
    if os.geteuid() != 0:
        return
    owner = os.fstat(parent_fd)
    try:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=parent_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _MAY_NOT_GIVE:
            raise
