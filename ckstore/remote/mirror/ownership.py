"""Which runs the mirror of a store writes, and which numbers its later saves have. Source: docs/format/remote-v1.md.

``tests/protocol/owners.py`` is the model of this.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ckstore.errors import CkstoreError, RemoteError, RemoteUnavailable, RunIsOwned
from ckstore.fs.host import machine
from ckstore.model.names import WIDEST_GAP, greatest_in_order
from ckstore.ops.config_file import LEAST_SEQUENCE, edit, setting_of
from ckstore.ops.context import Context
from ckstore.ops.index.sequence import sequence_limit
from ckstore.ops.settings_file import read_settings
from ckstore.remote import keys
from ckstore.remote.asking import server_time
from ckstore.remote.documents.owner import Owner, read_owner
from ckstore.remote.find_there import facts_of
from ckstore.remote.objects import Listed, Remote
from ckstore.remote.reach import OtherStore
from ckstore.remote.source import ObjectSource


@dataclass(slots=True)
class Ownership:
    """What one process knows of the runs that its store mirrors.

    Attributes:
        context: The store.
        clock: Seconds that also pass while the machine sleeps.
    """

    context: Context
    clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    # Of each run that the store owns: what this process wrote last, its mark, and when.
    _owned: dict[str, tuple[Owner, str, float]] = field(default_factory=dict)

    def own(self, remote: Remote, run: str, sequence: int, *, by_name: bool = False) -> None:
        """Own a run, and promise a number, before a checkpoint that has it is brought.

        Args:
            remote: The mirror.
            run: Which.
            sequence: The greatest number that is brought next.
            by_name: A user said that this store takes the run over.

        Raises:
            RunIsOwned: Another store mirrors the run, and is alive as far as is known.
        """
        begun_s, known = self.clock(), self._owned.get(run)
        if known is not None:
            own, listed_tag, written_s = known
            if sequence <= own.sequence and begun_s - written_s < own.life_s / 4:
                return
            more = replace(own, sequence=max(sequence, own.sequence))
            # Without compare-and-swap it is read first: another store may have taken the run over by name.
            if remote.cas and (tag := remote.objects.update(keys.owner(run), more.render(), listed_tag)) is not None:
                self._owned[run] = more, tag, begun_s
                return
            del self._owned[run]
        found = read_owner(remote.objects, run)
        mine = self._mine(run)
        if found is None:
            there = _greatest(self.context, remote, run)
            raise_order(self.context, there, remote.name)
            own = replace(mine, sequence=max(sequence, there))
            is_written = remote.objects.create(keys.owner(run), own.render())
            version = remote.objects.head(keys.owner(run)) if is_written else None
            tag = None if version is None else version.tag
        else:
            owner, listed = found
            is_own = owner.store == mine.store
            if not is_own and not by_name:
                self._check_dead(remote, owner, listed)
            epoch = owner.epoch if is_own else owner.epoch + 1
            own = replace(mine, epoch=epoch, sequence=max(sequence, owner.sequence))
            # Before the run is taken: what is saved from then on is above all that the former owner ever brings.
            raise_order(self.context, owner.sequence, remote.name)
            data, objects = own.render(), remote.objects
            tag = (
                objects.update(keys.owner(run), data, listed.tag) if remote.cas else objects.send(keys.owner(run), data)
            )
        if tag is None:
            raise RemoteUnavailable(f"another store took the run {run} at {remote.name} at this moment")
        self._owned[run] = own, tag, begun_s

    def _mine(self, run: str) -> Owner:
        path = str(self.context.layout.path)
        return Owner(run, self.context.settings.uuid, socket.gethostname(), machine.boot_id(), path)

    def _check_dead(self, remote: Remote, there: Owner, listed: Listed) -> None:
        if _is_gone(there):
            return
        age_s = (server_time(remote.objects) - listed.modified).total_seconds()
        if remote.cas and age_s > there.life_s:
            return
        who = f"the store {there.path} on {there.host} ({there.store})"
        msg = f"{who} mirrors the run {there.run} to {remote.name}, and did so {max(0.0, age_s):.0f} s ago"
        when = f"{there.life_s:.0f} s after it stopped" if remote.cas else "never by itself at this service"
        hint = f"this store takes the run over {when}; or now: ckstore remote take-over {remote.name} {there.run}"
        raise RunIsOwned(msg, hint=f"{hint}; if both trainings go on, give one another run")


def learn_order(context: Context, there: Remote | OtherStore) -> None:
    """Let later saves of a store come after all that a mirror has of its runs.

    Raises:
        RemoteError: The mirror does not answer, or has a number that no later one would count after.
    """
    if not isinstance(there, Remote):
        raise_order(context, sequence_limit(there.context), there.name)
        return
    for run in context.layout.runs():
        found = read_owner(there.objects, run)
        promised = 0 if found is None else found[0].sequence
        raise_order(context, max(promised, _greatest(context, there, run)), there.name)


def raise_order(context: Context, sequence: int, name: str) -> None:
    """Let every later save of a store have a greater number than one that a mirror has."""
    own = max(setting_of(context.layout, LEAST_SEQUENCE), sequence_limit(context))
    if sequence > own + WIDEST_GAP:
        msg = f"{name} has a checkpoint with the number {sequence} in the order of commits"
        raise RemoteError(f"{msg}, more than 2^32 beyond all numbers here", hint="which other program writes there?")
    if sequence > own:
        edit(context.layout, LEAST_SEQUENCE.name, lambda found: max(found or 0, sequence))


def _greatest(context: Context, remote: Remote, run: str) -> int:
    """Return the greatest number that counts of the checkpoints that a run has at a remote."""
    source = ObjectSource(remote.objects, remote.name)
    facts = facts_of(source, source.places(f"{run}/"), context.layout.hash_prefix)
    return greatest_in_order(info.sequence for info in facts.values())


def _is_gone(owner: Owner) -> bool:
    """Whether a store was on this machine, in this start of it, and is there no more."""
    if (owner.host, owner.boot) != (socket.gethostname(), machine.boot_id()):
        return False
    try:
        return read_settings(Path(owner.path)).uuid != owner.store
    except (CkstoreError, OSError):
        return not Path(owner.path).exists()
