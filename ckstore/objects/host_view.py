"""The processes that are visible on this host among those that use a store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostView:
    """The processes that use a store and are visible on this host: all of them, or only those of this host.

    The three properties have the same value today. Each names the reason for which the code reads it.

    Attributes:
        other_hosts: Why other hosts may use the store, whose locks, open files and catalogs are not visible here. Empty
            if that is impossible.
        is_assumed: Whether `other_hosts` is only assumed, because the settings cannot be read. The store may be local.
    """

    other_hosts: str = ""
    is_assumed: bool = False

    @property
    def sees_locks(self) -> bool:
        """Whether the locks, leases and open files of all processes that use the store are visible."""
        return not self.other_hosts

    @property
    def sees_changes(self) -> bool:
        """Whether names, link counts and inode numbers are current, and do not come from an older cache."""
        return not self.other_hosts

    @property
    def frees_at_once(self) -> bool:
        """Whether dropped data can be freed at once. Otherwise another host may read it, and it waits for the grace."""
        return not self.other_hosts


ALL_SEEN = HostView()
"""The view of a store that only this host uses."""
