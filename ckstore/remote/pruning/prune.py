"""Garbage-collects a remote: unreferenced blobs are marked, then deleted after a grace period.

``tests/protocol/remote.py`` models this protocol. The order of the reads, and the version that each swap expects,
protect the blobs that a push relies on. Source: docs/format/remote-v1.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ckstore.errors import CkstoreError, InUse, RemoteError, RemoteUnavailable
from ckstore.model.digest import Algorithm
from ckstore.model.remote.prune_report import RemotePruneReport
from ckstore.model.times import text_of_time, time_of_text
from ckstore.remote import key_lookup, keys
from ckstore.remote.documents.condemned_names import (
    BATCH_NAMES,
    MOST_BURNT,
    MOST_CONDEMNED,
    PAUSE_S,
    TRIES,
    Batch,
    CondemnedNames,
    read_versioned,
    swap,
)
from ckstore.remote.documents.remote_info import read_info
from ckstore.remote.objects import ObjectEntry, Remote
from ckstore.remote.pruning.needed_digests import RemoteSurvey

GRACE_S = 86_400.0
# The minimum grace period. Requests take less time than this on every service, so a blob rarely becomes due during the
# call that marked it.
LEAST_GRACE_S = 60.0
# The number of names that one request deletes. If its response is lost, these names are retired.
REQUEST_NAMES = 1000
_PROBES_S = 86_400.0


def prune(
    remote: Remote, algorithm: Algorithm, *, grace_s: float, dry_run: bool = False, exclusive: bool = False
) -> RemotePruneReport:
    """Delete the blobs of a remote that no checkpoint and no push references.

    Args:
        remote: The remote to prune.
        algorithm: The hash algorithm of its digests.
        grace_s: The grace period of unreferenced blobs, by the server's clock.
        dry_run: Change nothing, and report what would be deleted.
        exclusive: The caller guarantees that no other process writes to the remote.

    Raises:
        RemoteError: The service does not support compare-and-swap, and `exclusive` is False.
        InUse: The service does not support compare-and-swap, and a push is under way although `exclusive` is True.
        CkstoreError: An object that references blobs cannot be read. Nothing further is deleted.
    """
    read_info(remote.objects, remote.name)
    if not remote.cas and not exclusive:
        msg = f"{remote.name} does not support compare-and-swap, so a prune cannot run at the same time as pushes"
        raise RemoteError(
            msg,
            hint="when no other process uses the remote: exclusive=True",
            command_hint="when no other process uses the remote: --exclusive",
        )
    now = datetime.now(UTC) if dry_run else key_lookup.server_time(remote.objects)
    survey = RemoteSurvey(remote, algorithm.prefix, now, grace_s, changes=not dry_run and remote.cas)
    work = _Prune(remote, survey, RemotePruneReport(remote.name, dry_run=dry_run))
    if dry_run:
        work.look()
    elif remote.cas:
        work.tidy()
        work.beside_pushes()
    else:
        work.tidy()
        work.alone()
    return replace(work.report, voided_count=len(survey.voided), finished_count=len(survey.finished))


@dataclass(slots=True)
class _Prune:
    """One call of prune."""

    remote: Remote
    survey: RemoteSurvey
    report: RemotePruneReport
    _blobs: dict[str, ObjectEntry] = field(default_factory=dict)  # listed blobs by name, without those deleted since
    _own: set[str] = field(default_factory=set)  # ids of the batches of this call
    _begun_s: float = field(default_factory=time.monotonic)
    _sent: tuple[str, ...] = ()  # names whose deletion was requested and not yet acknowledged

    def look(self) -> None:
        """Report what a prune would do."""
        said, _ = read_versioned(self.remote.objects)
        named = self.survey.named()
        self._list_blobs()
        ripe, fresh, stale = self._classify(said, named)
        self._count_removed([*ripe, *stale])
        self._count_kept(self._next_content(said, named, (), fresh), fresh)

    def beside_pushes(self) -> None:
        """Mark blobs, and delete those whose grace period has passed, batch by batch."""
        try:
            self._rounds()
        except CkstoreError:
            # This is only best effort: a later prune retires all names of a batch that remains in ``condemned.json``.
            with suppress(CkstoreError):
                self._end_batches()
            raise

    def _rounds(self) -> None:
        lost_count = 0  # failed swaps; the successful swap of the other client leaves less work for the next round
        while lost_count < TRIES:
            # The version is read before the lists of blobs. If a push unmarks a blob after that, the swap fails.
            said, version = read_versioned(self.remote.objects)
            named = self.survey.named()
            if not self._blobs:
                # The blobs are listed only once per call, since a listing takes one request per thousand blobs. An old
                # listing may contain blobs that were deleted or written again. Marking such a blob deletes nothing.
                self._list_blobs()
            ripe, fresh, stale = self._classify(said, named)
            self._remove_keys(stale)
            done = self._apply_lists(said, version, named, ripe, fresh)
            if done is None:
                lost_count += 1
                time.sleep(PAUSE_S)
            # If the grace period is zero, newly marked blobs are due in the next round, which reads intents and
            # manifests again.
            elif not self._is_past(self.survey.now) or done.condemned.keys().isdisjoint(fresh):
                self.survey.finish_removals()
                self._count_kept(done, fresh)
                return
        msg = f"{keys.CONDEMNED} at {self.remote.name} was changed by other clients {TRIES} times"
        raise RemoteUnavailable(msg, hint="prune again later; the blobs deleted so far remain deleted")

    def _apply_lists(
        self, said: CondemnedNames, version: str | None, named: set[str], ripe: list[str], fresh: list[str]
    ) -> CondemnedNames | None:
        """Delete the due blobs in batches, then mark other blobs, all according to the same lists.

        Returns:
            The new content of the object, or None if another client changed it.
        """
        for start in range(0, len(ripe) + BATCH_NAMES, BATCH_NAMES):
            batch = tuple(ripe[start : start + BATCH_NAMES])
            new = self._next_content(said, named, batch, fresh)
            if new != said:
                # The swap replaces the version that was read before the lists, or the last version of this call. In any
                # other version, a push may have unmarked a blob that is unreferenced according to the lists.
                version = swap(self.remote.objects, new, version)
                if version is None:
                    return None
                said = new
            for at in range(0, len(batch), REQUEST_NAMES):
                self._sent = batch[at : at + REQUEST_NAMES]
                self.remote.objects.delete([keys.blob(name) for name in self._sent])
                self._count_removed(self._sent)
            self._sent = ()
        return said

    def alone(self) -> None:
        """Delete unreferenced blobs. The caller guarantees that no other process writes.

        Raises:
            InUse: A push is under way.
        """
        live = self.survey.end_intents()
        if live:
            newest = max(record.listed.modified for record in live)
            msg = f"a push to {self.remote.name} is under way: it wrote its intent at {newest:%Y-%m-%d %H:%M:%S} UTC"
            raise InUse(msg, hint="wait until it has ended, or an hour if it was killed")
        named = self.survey.named()
        self._list_blobs()
        old = [name for name, one in self._blobs.items() if _digest(name) not in named and self._is_old(one)]
        self._remove_keys(old)
        self.survey.finish_removals()
        self._count_kept(CondemnedNames(), [])

    def tidy(self) -> None:
        """Delete leftovers of probes."""
        listed = self.remote.objects.list(keys.PROBE)
        old_s = max(_PROBES_S, self.survey.grace_s)
        old = [one.key for one in listed if self.survey.now - one.modified > timedelta(seconds=old_s)]
        if old:
            self.remote.objects.delete(old)

    def _list_blobs(self) -> None:
        listed = self.remote.objects.list(keys.BLOBS)
        self._blobs = {str(name): one for one in listed if (name := keys.blob_in(one.key)) is not None}

    def _classify(self, said: CondemnedNames, named: set[str]) -> tuple[list[str], list[str], list[str]]:
        """Return the names to delete, the names to mark, and retired names that still have an object."""
        ripe, fresh, stale = [], [], []
        going = said.going()
        for name, one in sorted(self._blobs.items()):
            digest = _digest(name)
            if name != str(said.name(digest)):
                number = int(name.partition(".")[2] or 0)
                stale += [name] if number < said.retired_names.get(digest, 0) else []
            elif digest in named or name in going:
                continue
            elif name not in said.condemned:
                fresh += [name] if self._is_old(one) else []
            elif self._is_past(time_of_text(said.condemned[name])):
                ripe.append(name)
        return ripe, fresh, stale

    def _next_content(
        self, said: CondemnedNames, named: set[str], batch: tuple[str, ...], fresh: list[str]
    ) -> CondemnedNames:
        """Return the next content of the object: with this batch, or with newly marked names if the batch is empty."""
        leaving = {*batch}
        condemned = {
            name: since
            for name, since in said.condemned.items()
            if name in self._blobs and _digest(name) not in named and name not in leaving
        }
        new = CondemnedNames(condemned, dict(said.deleting), dict(said.retired_names))
        for own in self._own:
            new.deleting.pop(own, None)  # all deletions of this batch were acknowledged
        for other, dead in [*new.deleting.items()]:
            if self._is_past(time_of_text(dead.since)):
                # The pruner of this batch may only be suspended. Its late deletions must not affect a current name.
                new.burn(dead.names)
                del new.deleting[other]
        going_count = len(new.going())
        if not batch:
            now = text_of_time(self.survey.now)
            new.condemned.update(dict.fromkeys(fresh[: max(0, MOST_CONDEMNED - len(condemned) - going_count)], now))
            return new
        if len(new.retired_names) + going_count + len(batch) > MOST_BURNT:
            msg = (
                f"{keys.CONDEMNED} at {self.remote.name} has {len(new.retired_names):,} retired names, "
                "and "
                f"{going_count + len(batch):,} more could follow; its limit is {MOST_BURNT:,}, so pruning stopped"
            )
            raise RemoteError(msg, hint="push the checkpoints to another prefix, and delete this one")
        batch_id = uuid.uuid4().hex
        self._own.add(batch_id)
        # This is the time of the batch and not of the call, because another pruner considers the batch dead one grace
        # period after this time.
        since = self.survey.now + timedelta(seconds=time.monotonic() - self._begun_s)
        new.deleting[batch_id] = Batch(batch, text_of_time(since))
        return new

    def _end_batches(self) -> None:
        """Remove the batches of this call from the object, after an error."""
        for _ in range(TRIES):
            said, version = read_versioned(self.remote.objects)
            if not [said.deleting.pop(own) for own in self._own if own in said.deleting]:
                return  # no batch is left, or another pruner considered this call dead and retired its names
            # Only these names are retired, because all other deletions were acknowledged or never sent.
            said.burn(self._sent)
            if swap(self.remote.objects, said, version) is not None:
                return
            time.sleep(PAUSE_S)

    def _remove_keys(self, names: list[str]) -> None:
        """Delete blobs by name. The names must be retired, unless no other process writes to the remote."""
        if names:
            self.remote.objects.delete([keys.blob(name) for name in names])
            self._count_removed(names)

    def _is_old(self, one: ObjectEntry) -> bool:
        return self._is_past(one.modified)

    def _is_past(self, since: datetime) -> bool:
        return self.survey.now - since >= timedelta(seconds=self.survey.grace_s)

    def _count_removed(self, names: Iterable[str]) -> None:
        gone = [self._blobs.pop(name) for name in names]
        self.report = replace(
            self.report,
            removed_count=self.report.removed_count + len(gone),
            removed_bytes=self.report.removed_bytes + sum(one.nbytes for one in gone),
        )

    def _count_kept(self, said: CondemnedNames, fresh: list[str]) -> None:
        condemned = [self._blobs[name].nbytes for name in said.condemned if name in self._blobs]
        self.report = replace(
            self.report,
            blob_count=len(self._blobs),
            blob_bytes=sum(one.nbytes for one in self._blobs.values()),
            condemned_count=len(condemned),
            condemned_bytes=sum(condemned),
            uncondemned_count=sum(name not in said.condemned for name in fresh),
        )


def _digest(name: str) -> str:
    return name.partition(".")[0]
