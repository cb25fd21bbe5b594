"""Which last names of blobs may go (rule K): one decision, for the plan of gc and for the collector."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from ckstore.fs import dirfd_stat, holders
from ckstore.fs.store_path import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.reports.held_blobs import HeldBlob
from ckstore.objects.layout import BLOBS

_BLIND = "without /proc, gc cannot see which process has it open"
_CANNOT_ASK = "the kernel does not say here which process has it open"


@dataclass(frozen=True, slots=True)
class LastLink:
    """The last name of a blob, about to go."""

    digest: str
    path: StorePath
    status: os.stat_result

    @property
    def inode(self) -> holders.Inode:
        """Its device and inode number."""
        return self.status.st_dev, self.status.st_ino


class OpenFileCheck:
    """Says of last names whether a process has the blob open."""

    def __init__(self, *, leases: bool) -> None:
        # Processes that could not be looked at, in the scan that saw least; None: unknown how many.
        self.unseen_count: int | None = 0
        self._leases = leases

    def look_for(self, lasts: Iterable[LastLink]) -> holders.Scan:
        """Look at all processes once: after a rename to trash, so that no process can find the way to the file."""
        seen = holders.find_holders([last.inode for last in lasts])
        before, now = self.unseen_count, seen.unseen_count
        self.unseen_count = None if before is None or now is None else max(before, now)
        return seen

    def may_be_open(self, path: StorePath) -> bool:
        """What the kernel says, where it can be asked; a look at all processes comes before or after this."""
        return self._leases and holders.holding_of(path) is not holders.Holding.FREE

    def is_held(self, last: LastLink, seen: holders.Scan) -> bool:
        """Whether a blob has to stay: it is open, or nothing can be asked."""
        if self._is_blind(seen):
            return True
        return last.inode in seen.holders or self.may_be_open(last.path)

    def held(self, last: LastLink, seen: holders.Scan) -> HeldBlob:
        """Return what is to be said of a blob that stays."""
        why = _BLIND if self._is_blind(seen) else why_unasked(last.path)
        return HeldBlob(last.digest, last.status.st_size, tuple(seen.holders.get(last.inode, ())), why)

    def is_open(self, last: LastLink) -> bool:
        """As `is_held`, of one file; where the kernel can be asked, the processes are not looked at."""
        if self._leases:
            return self.may_be_open(last.path)
        return self.is_held(last, holders.find_holders([last.inode]))

    def _is_blind(self, seen: holders.Scan) -> bool:
        return seen.blind and not self._leases


def why_unasked(path: StorePath) -> str:
    """Return why the kernel does not say who has a file open; empty if it does."""
    try:
        if holders.holding_of(path) is not holders.Holding.UNKNOWN:
            return ""
        owner = dirfd_stat.status(path).st_uid
    except FileNotFoundError:
        return ""
    if os.geteuid() in (owner, 0):
        return _CANNOT_ASK
    return f"it belongs to uid {owner}: only a gc by that user or by root can free it"


class NameCount:
    """Names of blobs, counted for each inode."""

    def __init__(self) -> None:
        self.counts: Counter[holders.Inode] = Counter()  # inode -> how many names were counted
        # Inode -> the first of them, or the one in ``blobs/`` of those that gc goes to, with the file's status.
        self.first: dict[holders.Inode, LastLink] = {}

    def add(self, digest: str, path: StorePath, status: os.stat_result | None = None) -> os.stat_result | None:
        """Count a name, if there is a file; return the file's status if this is its last name."""
        try:
            status = status or dirfd_stat.find(path)
        except PermissionError:  # in a directory of another user: one name too few counts as in use
            return None
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        inode = status.st_dev, status.st_ino
        self.counts[inode] += 1
        if inode not in self.first:
            self.first[inode] = LastLink(digest, path, status)
        return status if self.counts[inode] == status.st_nlink else None

    def add_checkpoint(self, folder: StorePath, held: StorePath) -> list[str]:
        """Count all blobs in the directory of a checkpoint or a save, reached by `held`; return their digests."""
        found = blobs_in(held / BLOBS)
        blobs = folder / BLOBS
        for digest, status in found:
            self.add(digest, blobs / digest, status)
        return [digest for digest, _ in found]

    def add_canonical(self, paths: Iterable[StorePath]) -> None:
        """Count the names of blobs in ``blobs/``, and remember each as the one to go to: 256 directories have all."""
        for _, group in groupby(paths, key=lambda path: path.parts[:-1]):
            by_name = {path.name: path for path in group}
            try:
                found = dirfd_stat.found_in(next(iter(by_name.values())).parent, [*by_name])
            except PermissionError:  # a directory of another user
                continue
            for name, status in found.items():
                if stat.S_ISREG(status.st_mode):
                    self.first[status.st_dev, status.st_ino] = LastLink(name, by_name[name], status)
                    self.add(name, by_name[name], status)

    def lasts(self) -> list[LastLink]:
        """Return the first name of each inode whose names were all counted, in the order of digests."""
        gone = [name for inode, name in self.first.items() if self.counts[inode] == name.status.st_nlink]
        return sorted(gone, key=lambda name: (name.digest, str(name.path)))

    def linked(self, digests: Iterable[str]) -> dict[str, int]:
        """Return those of some digests of which a file has further names, and its size."""
        wanted = set(digests)
        return {
            name.digest: name.status.st_size
            for inode, name in self.first.items()
            if name.digest in wanted and self.counts[inode] < name.status.st_nlink
        }


def blobs_in(folder: StorePath) -> list[tuple[str, os.stat_result]]:
    """Return the blobs in a directory by digest, with their status; none if it is gone, or closed to this user."""
    try:
        found = [(name, status) for name, status in dirfd_stat.statuses(folder) if is_digest(name)]
    except PermissionError:
        return []
    return sorted((blob for blob in found if stat.S_ISREG(blob[1].st_mode)), key=itemgetter(0))
