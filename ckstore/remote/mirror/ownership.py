"""Makes a store the owner of the runs that it mirrors, and raises the sequence numbers of its later saves.

``tests/protocol/owners.py`` models this protocol. Source: docs/format/remote-v1.md.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ckstore.errors import CkstoreError, RemoteError, RemoteUnavailable, RunIsOwned
from ckstore.fs import dirfd_stat
from ckstore.fs.host import machine
from ckstore.model.names import WIDEST_GAP, greatest_in_order
from ckstore.model.words import arguments
from ckstore.ops.config_file import LEAST_SEQUENCE, edit, setting_of
from ckstore.ops.context import Context
from ckstore.ops.index.sequence import sequence_limit
from ckstore.ops.mirror_record import forget_if_older
from ckstore.ops.settings_file import read_settings
from ckstore.remote import keys
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.documents.run_owner import Owner, read_owner
from ckstore.remote.key_lookup import server_time
from ckstore.remote.objects import ObjectEntry, Remote
from ckstore.remote.record import read_record
from ckstore.remote.remote_refs import facts_of
from ckstore.remote.source import ObjectSource


class _OwnerVersion(NamedTuple):
    """The version of a run's owner object that this process wrote last."""

    owner: Owner
    tag: str  # the service's tag of the version
    at_s: float  # time before the write, by `Ownership.clock`


@dataclass(slots=True)
class Ownership:
    """The runs that this process owns for the mirror of its store.

    Attributes:
        context: The store.
        clock: A clock in seconds that also advances while the machine is suspended.
    """

    context: Context
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    _owned: dict[str, _OwnerVersion] = field(default_factory=dict)  # by run

    @property
    def sequences(self) -> dict[str, int]:
        """For each run that this process owns, the sequence number that it published last."""
        return {run: version.owner.sequence for run, version in self._owned.items()}

    def own(self, remote: Remote, run: str, sequence: int, *, by_name: bool = False) -> None:
        """Become or remain the owner of a run, and publish a sequence number before pushing a checkpoint with it.

        Args:
            remote: The mirror.
            run: The run to own.
            sequence: The greatest sequence number of the next push.
            by_name: Whether a user asked this store to take the run over.

        Raises:
            RunIsOwned: Another store mirrors the run, and is alive according to the remote.
            RemoteUnavailable: Another store took the run over at the same moment, or the remote does not answer.
            RemoteError: The remote has a sequence number that later saves cannot exceed, or another remote has replaced
                it.
        """
        written = self._renew(remote, run, sequence)
        if written is None:
            check_takes(remote, self.context.settings)  # checked first, since another remote may have replaced it
            found = read_owner(remote.objects, run)
            if found is None:
                written = self._create_owner(remote, run, sequence)
            else:
                written = self._take_over_run(remote, *found, sequence, by_name=by_name)
        if written is None:
            msg = f"another store is taking over the run {run} on {remote.name}"
            raise RemoteUnavailable(msg, hint="the next attempt names the store that has the run")
        self._owned[run] = written

    def _renew(self, remote: Remote, run: str, sequence: int) -> _OwnerVersion | None:
        """Return the version of the owner object, renewed if necessary, or None if this process is not the owner."""
        begun_s, known = self.clock(), self._owned.pop(run, None)
        if known is None:
            return None
        # If the store was restored from a backup, its later saves must still follow those on the mirror.
        raise_order(self.context, known.owner.sequence, remote.name)
        if sequence <= known.owner.sequence and begun_s - known.at_s < known.owner.life_s / 4:
            return known
        if not remote.cas:  # the object must be read first, because another store may have taken the run over
            return None
        own = replace(known.owner, sequence=max(sequence, known.owner.sequence))
        tag = remote.objects.update(keys.owner(run), own.render(), known.tag)
        return None if tag is None else _OwnerVersion(own, tag, begun_s)

    def _create_owner(self, remote: Remote, run: str, sequence: int) -> _OwnerVersion | None:
        """Become the owner of a run that has no owner. Return None if another store was faster."""
        begun_s = self.clock()
        there = _greatest(self.context, remote, run)
        raise_order(self.context, there, remote.name)
        own = replace(self._new_owner(run), sequence=max(sequence, there))
        if not remote.objects.create(keys.owner(run), own.render()):
            return None
        version = remote.objects.head(keys.owner(run))
        return None if version is None else _OwnerVersion(own, version.tag, begun_s)

    def _take_over_run(
        self, remote: Remote, owner: Owner, listed: ObjectEntry, sequence: int, *, by_name: bool
    ) -> _OwnerVersion | None:
        """Become the owner of a run that has an owner, which may be this store. Return None if another was faster."""
        begun_s, mine = self.clock(), self._new_owner(owner.run)
        is_own = owner.store == mine.store
        if not is_own and not by_name:
            self._check_dead(remote, owner, listed)
        if is_own:
            pushed = read_record(self.context.layout, remote.name).documents.keys()
            forget_if_older(self.context.layout, remote.name, owner.run, owner.sequence, pushed)
        epoch = owner.epoch if is_own else owner.epoch + 1
        own = replace(mine, epoch=epoch, sequence=max(sequence, owner.sequence))
        # This precedes the takeover, so that later saves get numbers above all numbers that the former owner can push.
        raise_order(self.context, owner.sequence, remote.name)
        key, data = keys.owner(owner.run), own.render()
        tag = remote.objects.update(key, data, listed.tag) if remote.cas else remote.objects.send(key, data)
        return None if tag is None else _OwnerVersion(own, tag, begun_s)

    def _new_owner(self, run: str) -> Owner:
        path = str(self.context.layout.path)
        return Owner(run, self.context.settings.uuid, socket.gethostname(), machine.boot_id(), path)

    def _check_dead(self, remote: Remote, there: Owner, listed: ObjectEntry) -> None:
        if _is_dead(there):
            return
        age_s = (server_time(remote.objects) - listed.modified).total_seconds()
        if remote.cas and age_s > there.life_s:
            return
        who = f"the store {there.path} on {there.host} ({there.store})"
        msg = f"{who} mirrors the run {there.run} to {remote.name}, most recently {max(0.0, age_s):.0f} s ago"
        when = (
            f"{there.life_s:.0f} s after it stopped, or now by"
            if remote.cas
            else "only on request, because this service lacks compare-and-swap"
        )
        hint = f"this store takes the run over {when}: ckstore remote take-over {remote.name} {arguments(there.run)}"
        raise RunIsOwned(msg, hint=f"{hint}; if both trainings continue, save one of them to another run")


def learn_order(context: Context, there: Remote) -> None:
    """Make later saves of a store follow, in commit order, all checkpoints of its runs on a mirror.

    Raises:
        RemoteError: The mirror does not answer, or has a sequence number that later saves cannot exceed.
    """
    greatest = 0
    for run in context.layout.runs():
        found = read_owner(there.objects, run)
        greatest = max(greatest, 0 if found is None else found[0].sequence, _greatest(context, there, run))
    raise_order(context, greatest, there.name)


def raise_order(context: Context, sequence: int, name: str) -> None:
    """Raise the sequence numbers of later saves of a store above `sequence`, a number on its mirror."""
    own = max(setting_of(context.layout, LEAST_SEQUENCE), sequence_limit(context))
    if sequence > own + WIDEST_GAP:
        msg = f"{name} has a checkpoint with the number {sequence} in the order of commits"
        raise RemoteError(
            f"{msg}, more than 2^32 beyond all numbers in this store", hint="check which program wrote the checkpoint"
        )
    if sequence > own:
        edit(context.layout, LEAST_SEQUENCE.name, lambda found: max(found or 0, sequence))


def _greatest(context: Context, remote: Remote, run: str) -> int:
    """Return the greatest valid sequence number among the checkpoints of a run on a remote."""
    source = ObjectSource(remote.objects, remote.name)
    facts = facts_of(source, source.places(f"{run}/"), context.layout.hash_prefix)
    return greatest_in_order(info.sequence for info in facts.values())


def _is_dead(owner: Owner) -> bool:
    """Whether an owner was a store on this machine since the last boot, and that store no longer exists.

    The path of the store is then missing, or has another store.
    """
    if (owner.host, owner.boot) != (socket.gethostname(), machine.boot_id()):
        return False
    path = Path(owner.path)
    try:
        return dirfd_stat.find(path) is None or read_settings(path).uuid != owner.store
    except (CkstoreError, OSError):  # the store may exist, but belong to another user
        return False
