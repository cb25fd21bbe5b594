"""Judge free space and inodes, the reserve, and how much the kernel still has to write."""

from __future__ import annotations

from dataclasses import dataclass

from ckstore.model.doctor.finding import DoctorFinding, ok
from ckstore.model.sizes import size_text

_LOW_PART = 0.05
_LOW_INODES = 1000
_MAKE_ROOM = "free space: ckstore prune --keep-last N, then ckstore gc --now; ckstore du shows what takes it"


@dataclass(frozen=True, slots=True)
class SpaceFacts:
    """Room on a filesystem, in bytes and inodes that this user may take."""

    total_bytes: int
    free_bytes: int
    total_inodes: int  # 0: it makes them as it needs them
    free_inodes: int  # meaningless without a total
    newest_bytes: int  # size of the newest checkpoint; 0 if there is none
    reserve_bytes: int  # what the store keeps back for gc on a full disk
    reserve_wanted_bytes: int  # what it should keep back


@dataclass(frozen=True, slots=True)
class DirtyFacts:
    """What the kernel has not written yet, of all programs, and from where on it makes writers wait."""

    dirty_bytes: int  # waiting to be written
    writeback_bytes: int  # being written
    limit_bytes: int  # where writers are made to wait; 0 if not known


def check_bytes(facts: SpaceFacts) -> DoctorFinding:
    """Return what is to be said of free bytes."""
    found = f"{size_text(facts.free_bytes)} of {size_text(facts.total_bytes)} are free"
    if facts.free_bytes < facts.reserve_wanted_bytes:
        return DoctorFinding("error", "free space", f"{found}: nothing can be saved", _MAKE_ROOM)
    if facts.free_bytes < facts.newest_bytes:
        found += f", less than the newest checkpoint takes ({size_text(facts.newest_bytes)})"
        return DoctorFinding("warning", "free space", found, _MAKE_ROOM)
    if facts.free_bytes < _LOW_PART * facts.total_bytes:
        return DoctorFinding("warning", "free space", f"{found}, less than {_LOW_PART:.0%}", _MAKE_ROOM)
    return ok("free space", found)


def check_inodes(facts: SpaceFacts) -> DoctorFinding:
    """Return what is to be said of free inodes."""
    if facts.total_inodes == 0:
        return ok("free inodes", "the filesystem makes them as it needs them")
    found = f"{facts.free_inodes} of {facts.total_inodes} are free"
    if facts.free_inodes < 16:
        return DoctorFinding("error", "free inodes", f"{found}: nothing can be saved", _MAKE_ROOM)
    if facts.free_inodes < _LOW_INODES:
        return DoctorFinding("warning", "free inodes", found, f"{_MAKE_ROOM}; or remove small files outside the store")
    return ok("free inodes", found)


def check_reserve(facts: SpaceFacts) -> DoctorFinding:
    """Return what is to be said of the space that is kept back."""
    if facts.reserve_bytes >= facts.reserve_wanted_bytes:
        return ok("reserve", f"{size_text(facts.reserve_bytes)} are reserved for gc on a full disk")
    part = f"{size_text(facts.reserve_bytes)} of {size_text(facts.reserve_wanted_bytes)}"
    do = "free space, then open the store for writing (ckstore gc does): with enough free space it is made again"
    return DoctorFinding("note", "reserve", f"{part} are reserved for gc on a full disk", do)


def check_dirty(facts: DirtyFacts) -> DoctorFinding:
    """Return what is to be said of what the kernel has not written yet."""
    waiting_bytes = facts.dirty_bytes + facts.writeback_bytes
    found = f"{size_text(facts.dirty_bytes)} dirty and {size_text(facts.writeback_bytes)} in write-back"
    if not facts.limit_bytes:
        return ok("dirty pages", f"{found}; the limit is not known")
    found += f", writers wait from {size_text(facts.limit_bytes)} on"
    if waiting_bytes > 0.8 * facts.limit_bytes:
        do = (
            "wait until it is written, or find the writer with iotop; a smaller vm.dirty_bytes makes such waits shorter"
        )
        return DoctorFinding("warning", "dirty pages", found, do)
    return ok("dirty pages", found)
