"""The owner of new files: a file that root creates in a store gets the owner of its directory.

Otherwise a save by root (sudo, a container without ``--user``) would leave files in a user's private store that this
user can neither read nor free. Root changes the owner of each file immediately after creating it. Running under the
user's id instead (`seteuid`, `setfsuid`) would remove other rights of root: `seteuid` from every thread of a training,
and both from reads of files that only root may read.
"""

from __future__ import annotations

import errno
import os

_MAY_NOT_GIVE = frozenset((errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP))
"""Root may lack CAP_CHOWN, as in a container. NFS may squash it, or the owner may be missing in this user namespace."""


# Bit 0 of the capabilities, linux/capability.h.
_CAP_CHOWN = 1 << 0


def current_user() -> int:
    """Return the effective user id of this process."""
    return os.geteuid()


def may_give() -> bool:
    """Whether this process, which is root's, may give files to other users. True if the kernel does not report it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            rights = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return True
    return bool(int(rights, 16) & _CAP_CHOWN)


def give_to_owner_of(parent_fd: int, fd: int) -> None:
    """As root, give a new open file to the owner and the group of its directory."""
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
    """Change the owner of a symlink like `give_to_owner_of`, because a symlink cannot be opened."""
    if os.geteuid() != 0:
        return
    owner = os.fstat(parent_fd)
    try:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=parent_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _MAY_NOT_GIVE:
            raise
