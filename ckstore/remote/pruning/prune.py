"""Removes from a remote what nothing names: condemned first, removed after a grace. Source: docs/format/remote-v1.md.

``tests/protocol/remote.py`` is the model of this: what is read before what, and which swap is on which version, is
what keeps blobs that a push relies on.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ckstore.errors import InUse, RemoteError, RemoteUnavailable
from ckstore.model.digest import Algorithm
from ckstore.model.reports.retention_report import RemotePruneReport
from ckstore.model.times import text_of_time, time_of_text
from ckstore.remote import keys
from ckstore.remote.documents.condemned import BATCH_NAMES, PAUSE_S, TRIES, Batch, Condemned, read_versioned, swap
from ckstore.remote.documents.info import read_info
from ckstore.remote.objects import Listed, Objects, Remote
from ckstore.remote.pruning.survey import Survey

GRACE_S = 86_400.0
# Longer than a request lives at any service, so that a usual call needs no second look at what it condemned itself.
LEAST_GRACE_S = 60.0
_PROBES_S = 86_400.0


def prune(
    remote: Remote, algorithm: Algorithm, *, grace_s: float, dry_run: bool = False, exclusive: bool = False
) -> RemotePruneReport:
    """Remove the blobs of a remote that no checkpoint and no push names.

    Args:
        remote: Which.
        algorithm: Of its digests.
        grace_s: How long what nothing names stays, by the server's clock.
        dry_run: Change nothing; say what would be removed.
        exclusive: The caller vouches that nothing else writes to the remote.

    Raises:
        RemoteError: The service does not compare before it writes, and the remote is not the caller's alone.
        InUse: It is said to be the caller's alone, and a push is under way.
        CkstoreError: Something that names blobs cannot be read; nothing more is removed.
    """
    read_info(remote.objects, remote.name)
    if not remote.cas and not exclusive:
        msg = f"{remote.name} changes an object whatever version is there, so a prune cannot work beside pushes"
        raise RemoteError(
            msg,
            hint="when no other process uses the remote: exclusive=True",
            command_hint="when no other process uses the remote: --exclusive",
        )
    now = datetime.now(UTC) if dry_run else _server_time(remote.objects)
    survey = Survey(remote, algorithm.prefix, now, grace_s, changes=not dry_run and remote.cas)
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


def _server_time(objects: Objects) -> datetime:
    key = f"probe/{uuid.uuid4().hex}-clock"
    written = objects.put(key, b"1")
    objects.delete([key])
    return written.modified


@dataclass(slots=True)
class _Prune:
    """One call of prune."""

    remote: Remote
    survey: Survey
    report: RemotePruneReport
    _kept: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        """Say what a prune would do."""
        said, _ = read_versioned(self.remote.objects)
        named, blobs = self.survey.named(), self._blobs()
        ripe, fresh, stale = self._judged(said, named, blobs)
        self._count_removed([*ripe, *stale], blobs)
        self._count_kept(blobs, {*ripe, *stale}, fresh)

    def beside_pushes(self) -> None:
        """Condemn, and remove what was condemned before, batch by batch."""
        lost_count = 0  # swaps that other clients were faster at; each one that succeeds leaves less to do
        while lost_count < TRIES:
            # The version before the lists: a push that takes a blob back after them changes it, and the swap fails.
            said, version = read_versioned(self.remote.objects)
            named, blobs = self.survey.named(), self._blobs()
            ripe, fresh, stale = self._judged(said, named, blobs)
            self._remove_keys(stale, blobs)
            new, batch = self._next(said, blobs, named, ripe[:BATCH_NAMES], fresh)
            if new == said:
                self.survey.finish_removals()
                self._count_kept(blobs, set(stale), [name for name in said.condemned if name in blobs])
                return
            if not swap(self.remote.objects, new, version):
                lost_count += 1
                time.sleep(PAUSE_S)
            elif batch:
                self._remove_batch(batch, new.deleting[batch].names, blobs)
        msg = f"{keys.CONDEMNED} at {self.remote.name} was changed by other clients {TRIES} times"
        raise RemoteUnavailable(msg, hint="prune again later; what was removed stays removed")

    def alone(self) -> None:
        """Remove what nothing names, where the caller vouched that nothing else writes.

        Raises:
            InUse: A push is under way.
        """
        live = self.survey.end_intents()
        if live:
            newest = max(record.listed.modified for record in live)
            msg = f"a push to {self.remote.name} is under way: it wrote its intent at {newest:%Y-%m-%d %H:%M:%S} UTC"
            raise InUse(msg, hint="wait until it has ended, or an hour if it was killed")
        named, blobs = self.survey.named(), self._blobs()
        old = [name for name, one in blobs.items() if _digest(name) not in named and self._is_old(one)]
        self._remove_keys(old, blobs)
        self.survey.finish_removals()
        self._count_kept(blobs, set(old), [])

    def tidy(self) -> None:
        """Remove what probes left."""
        listed = self.remote.objects.list("probe/")
        old_s = max(_PROBES_S, self.survey.grace_s)
        old = [one.key for one in listed if self.survey.now - one.modified > timedelta(seconds=old_s)]
        if old:
            self.remote.objects.delete(old)

    def _blobs(self) -> dict[str, Listed]:
        """Return the names of blobs that are there."""
        listed = self.remote.objects.list(keys.BLOBS)
        return {str(name): one for one in listed if (name := keys.blob_in(one.key)) is not None}

    def _judged(
        self, said: Condemned, named: set[str], blobs: dict[str, Listed]
    ) -> tuple[list[str], list[str], list[str]]:
        """Return the names to remove, those to condemn, and those that do not count."""
        ripe, fresh, stale = [], [], []
        going = said.going()
        for name, one in sorted(blobs.items()):
            digest = _digest(name)
            if name != str(said.name(digest)):
                stale += [name] if _number(name) < said.burnt.get(digest, 0) else []
            elif digest in named or name in going:
                continue
            elif name not in said.condemned:
                fresh += [name] if self._is_old(one) else []
            elif self._is_past(time_of_text(said.condemned[name])):
                ripe.append(name)
        return ripe, fresh, stale

    def _next(
        self, said: Condemned, blobs: dict[str, Listed], named: set[str], ripe: list[str], fresh: list[str]
    ) -> tuple[Condemned, str]:
        """Return what is to be said next, and the batch in it; "": none."""
        now = text_of_time(self.survey.now)
        condemned = {
            name: since
            for name, since in said.condemned.items()
            if name in blobs and _digest(name) not in named and name not in ripe
        }
        condemned.update(dict.fromkeys(fresh, now))
        new = Condemned(condemned, dict(said.deleting), dict(said.burnt))
        for other, batch in said.deleting.items():
            if self._is_past(time_of_text(batch.since)):
                # Its pruner may only sleep: a removal that it sends later must hit nothing that counts.
                new.burn(batch.names)
                del new.deleting[other]
        if not ripe:
            return new, ""
        batch_id = uuid.uuid4().hex
        new.deleting[batch_id] = Batch(tuple(ripe), now)
        return new, batch_id

    def _remove_batch(self, batch_id: str, names: tuple[str, ...], blobs: dict[str, Listed]) -> None:
        failure: RemoteError | None = None
        try:
            self.remote.objects.delete([keys.blob(name) for name in names])
        except RemoteError as error:
            failure = error
        for _ in range(TRIES):
            said, version = read_versioned(self.remote.objects)
            if said.deleting.pop(batch_id, None) is None:
                break  # another pruner took this one for dead, and burnt its names
            if failure is not None:
                said.burn(names)
            if swap(self.remote.objects, said, version):
                break
            time.sleep(PAUSE_S)
        if failure is not None:
            raise failure
        self._count_removed(list(names), blobs)

    def _remove_keys(self, names: list[str], blobs: dict[str, Listed]) -> None:
        """Remove names that are never written again, or of a remote that is the caller's alone."""
        if names:
            self.remote.objects.delete([keys.blob(name) for name in names])
            self._count_removed(names, blobs)

    def _is_old(self, one: Listed) -> bool:
        return self._is_past(one.modified)

    def _is_past(self, since: datetime) -> bool:
        return self.survey.now - since >= timedelta(seconds=self.survey.grace_s)

    def _count_removed(self, names: list[str], blobs: dict[str, Listed]) -> None:
        nbytes = sum(blobs[name].nbytes for name in names if name in blobs)
        self.report = replace(
            self.report,
            removed_count=self.report.removed_count + len(names),
            removed_bytes=self.report.removed_bytes + nbytes,
        )

    def _count_kept(self, blobs: dict[str, Listed], gone: set[str], condemned: list[str]) -> None:
        kept = {name: one.nbytes for name, one in blobs.items() if name not in gone}
        self.report = replace(
            self.report,
            blob_count=len(kept),
            blob_bytes=sum(kept.values()),
            condemned_count=len(condemned),
            condemned_bytes=sum(kept.get(name, 0) for name in condemned),
        )


def _digest(name: str) -> str:
    return name.partition(".")[0]


def _number(name: str) -> int:
    return int(name.partition(".")[2] or 0)
