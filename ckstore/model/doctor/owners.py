"""Findings about the owner of a store, and about other users who may read or change it."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass

from ckstore.model.doctor.finding import DoctorFinding, ok
from ckstore.model.words import some_of

_GROUP_WRITES = 0o020


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """Owner and permissions of a store."""

    path: str
    mode: int = 0o700  # permission bits of the root directory of the store
    owner: str = ""  # name of the owner of the root directory
    owner_id: int = 0  # user id of the owner of the root directory
    process_id: int = 0  # user id of this process
    may_give: bool = True  # whether this process may give files to other users, as root usually may
    # A phrase about each path where the store should have a directory, but has a symlink or another kind of file, or
    # a directory on another filesystem.
    misplaced: tuple[str, ...] = ()
    open_to_all: tuple[str, ...] = ()  # entries below the root directory that any user may change
    foreign_count: int = 0  # number of files that do not belong to the owner of the root directory
    writable_blobs: int = 0  # number of blobs with write permission


def check_owner(facts: OwnerFacts) -> DoctorFinding:
    """Check whether this process runs as the owner of the store, or as a member of its group."""
    if facts.owner_id == facts.process_id:
        return ok("owner", f"{facts.path} belongs to this user, {facts.owner}")
    if facts.mode & _GROUP_WRITES and facts.process_id != 0:
        told = f"{facts.path} belongs to {facts.owner} (uid {facts.owner_id}), and its group may write to it"
        do = "nothing, if that is intended; each user frees their own files, see docs/how-to/group.md"
        return DoctorFinding("note", "owner", told, do)
    me = "root" if facts.process_id == 0 else f"the user {facts.process_id}"
    told = f"{facts.path} belongs to {facts.owner} (uid {facts.owner_id}), and this process runs as {me}"
    if facts.process_id == 0 and facts.may_give:
        told += ": files that it creates in the store are given to that owner"
        return DoctorFinding("note", "owner", told, "nothing: the owner can read, link and free what root saves")
    if facts.process_id == 0:
        told += (
            " without the right to give files away (CAP_CHOWN): root will own what it writes, "
            "and the store's owner can neither link nor free that"
        )
    else:
        told += ": the kernel may refuse it links to that user's blobs, and hides which processes have them open"
    do = f"use the store as its owner, or give it to this user: chown -R (as root) {facts.path}"
    return DoctorFinding("warning", "owner", told, do)


def check_permissions(facts: OwnerFacts) -> DoctorFinding:
    """Check which other users may read or change the store."""
    open_ = [facts.path] if facts.mode & 0o002 else []
    open_ += facts.open_to_all
    if open_:
        told = f"any user of this machine may change {some_of(open_, 3)}"
        return DoctorFinding("error", "permissions", told, f"chmod -R o-w {facts.path}")
    if facts.writable_blobs:
        told = f"blobs with write permission, which a program may change by mistake: {facts.writable_blobs}"
        do = f"chmod -R a-w {facts.path}/blobs/*/*; then ckstore verify"
        return DoctorFinding("warning", "permissions", told, do)
    if facts.mode & _GROUP_WRITES:
        return _of_a_group(facts)
    if facts.foreign_count:
        told = f"files in {facts.path} that do not belong to {facts.owner}: {facts.foreign_count}"
        return DoctorFinding("warning", "permissions", told, f"as root: chown -R {facts.owner} {facts.path}")
    if facts.mode & 0o077:
        may = "read" if facts.mode & 0o044 else "reach into"
        told = f"{facts.path} has the mode {facts.mode & 0o7777:04o}: other users may {may} it"
        do = f"nothing, if that is intended; otherwise chmod -R go-rwx {facts.path}"
        return DoctorFinding("note", "permissions", told, do)
    return ok("permissions", f"only {facts.owner} may use {facts.path}")


def _of_a_group(facts: OwnerFacts) -> DoctorFinding:
    told = f"{facts.path} has the mode {facts.mode & 0o7777:04o}: its group may read and change it"
    if facts.foreign_count:
        told += f"; files that do not belong to {facts.owner}: {facts.foreign_count}"
    do = "nothing, if that is intended, see docs/how-to/group.md; otherwise, as root, "
    do += f"chmod -R go-rwx {facts.path} and chown -R {facts.owner} {facts.path}"
    if not facts.mode & stat.S_ISGID:
        told += "; new files in it do not get its group, so other users cannot use them"
        do = f"chmod -R g+s {facts.path}, and chgrp -R to the group; see docs/how-to/group.md; or chmod -R go-rwx"
    return DoctorFinding("note", "permissions", told, do)


def check_layout(misplaced: Sequence[str]) -> DoctorFinding:
    """Check whether each directory of the store is a real directory on the filesystem of the store."""
    if misplaced:
        do = "move the content back into the store: the whole store must be on one filesystem, without symlinks"
        return DoctorFinding("error", "layout", "; ".join(misplaced), do)
    return ok("layout", "every directory of the store is a real directory on the store's filesystem")
