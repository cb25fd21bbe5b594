"""Decide which last links to blobs may be removed (law K1), for the plan of gc and for the collector."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from ckstore.fs import dirfd_stat, holders
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.digest import is_digest
from ckstore.model.reports.held_blobs import HeldBlob
from ckstore.objects.layout import BLOBS

_BLIND = "without /proc, gc cannot see which process has it open"
_CANNOT_ASK = "the kernel does not report which process has it open"


@dataclass(frozen=True, slots=True)
class LastLink:
    """The last link to a blob, which may be removed."""

    digest: str
    path: StorePath
    status: os.stat_result

    @property
    def inode(self) -> holders.Inode:
        """The device and inode number of the blob."""
        return self.status.st_dev, self.status.st_ino


class OpenFileCheck:
    """Checks whether a process has a blob open before its last link is removed."""

    def __init__(self, *, leases: bool) -> None:
        # The largest number of processes that a scan could not inspect. None if the number is unknown.
        self.unseen_count: int | None = 0
        self._leases = leases

    def look_for(self, lasts: Iterable[LastLink]) -> holders.Scan:
        """Scan all processes once. The result remains valid for files in trash, which no other process opens."""
        seen = holders.find_holders([last.inode for last in lasts])
        before, now = self.unseen_count, seen.unseen_count
        self.unseen_count = None if before is None or now is None else max(before, now)
        return seen

    def may_be_open(self, path: StorePath) -> bool:
        """Whether the file may be open according to a lease. If leases are not used, the result is always False."""
        return self._leases and holders.holding_of(path) is not holders.Holding.FREE

    def is_held(self, last: LastLink, seen: holders.Scan) -> bool:
        """Whether a blob must be kept, because it is open or because this cannot be determined."""
        if self._is_blind(seen):
            return True
        return last.inode in seen.holders or self.may_be_open(last.path)

    def held(self, last: LastLink, seen: holders.Scan) -> HeldBlob:
        """Return the report entry for a blob that is kept."""
        why = _BLIND if self._is_blind(seen) else why_unasked(last.path)
        return HeldBlob(last.digest, last.status.st_size, tuple(seen.holders.get(last.inode, ())), why)

    def is_open(self, last: LastLink) -> bool:
        """Whether one file must be kept, like `is_held`. If leases are used, no process is scanned."""
        if self._leases:
            return self.may_be_open(last.path)
        return self.is_held(last, holders.find_holders([last.inode]))

    def _is_blind(self, seen: holders.Scan) -> bool:
        return seen.blind and not self._leases


def why_unasked(path: StorePath) -> str:
    """Return why the kernel does not report whether a file is open, or an empty string if it does."""
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
    """Counts the names of blobs for each inode."""

    def __init__(self) -> None:
        self.counts: Counter[holders.Inode] = Counter()  # inode -> the number of counted names
        # Inode -> its first counted name and status, or its canonical name if `add_canonical` has counted it.
        self.first: dict[holders.Inode, LastLink] = {}

    def add(self, digest: str, path: StorePath, status: os.stat_result | None = None) -> os.stat_result | None:
        """Count a name if its file exists. Return the status of the file if all of its names are counted now."""
        try:
            status = status or dirfd_stat.find(path)
        except PermissionError:  # the directory belongs to another user; an uncounted name keeps the blob
            return None
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        inode = status.st_dev, status.st_ino
        self.counts[inode] += 1
        if inode not in self.first:
            self.first[inode] = LastLink(digest, path, status)
        return status if self.counts[inode] == status.st_nlink else None

    def add_checkpoint(self, folder: StorePath, held: StorePath) -> list[str]:
        """Count all blobs in the directory of a checkpoint or a save, opened as `held`. Return their digests."""
        found = blobs_in(held / BLOBS)
        blobs = folder / BLOBS
        for digest, status in found:
            self.add(digest, blobs / digest, status)
        return [digest for digest, _ in found]

    def add_canonical(self, paths: Iterable[StorePath]) -> None:
        """Count names in ``blobs/``, and record each as the name to remove. Each directory is opened only once."""
        for _, group in groupby(paths, key=lambda path: path.parts[:-1]):
            by_name = {path.name: path for path in group}
            try:
                found = dirfd_stat.found_in(next(iter(by_name.values())).parent, [*by_name])
            except PermissionError:  # the directory belongs to another user
                continue
            for name, status in found.items():
                if stat.S_ISREG(status.st_mode):
                    self.first[status.st_dev, status.st_ino] = LastLink(name, by_name[name], status)
                    self.add(name, by_name[name], status)

    def lasts(self) -> list[LastLink]:
        """Return the name to remove for each inode whose names were all counted, sorted by digest."""
        gone = [name for inode, name in self.first.items() if self.counts[inode] == name.status.st_nlink]
        return sorted(gone, key=lambda name: (name.digest, str(name.path)))

    def linked(self, digests: Iterable[str]) -> dict[str, int]:
        """Return the size of each of these blobs whose file has names that were not counted."""
        wanted = set(digests)
        return {
            name.digest: name.status.st_size
            for inode, name in self.first.items()
            if name.digest in wanted and self.counts[inode] < name.status.st_nlink
        }


def blobs_in(folder: StorePath) -> list[tuple[str, os.stat_result]]:
    """Return the blobs in a directory with their status, or nothing if it is missing or this user may not read it."""
    try:
        found = [(name, status) for name, status in dirfd_stat.statuses(folder) if is_digest(name)]
    except PermissionError:
        return []
    return sorted((blob for blob in found if stat.S_ISREG(blob[1].st_mode)), key=itemgetter(0))
