"""Determines the blobs that a remote needs: those that a checkpoint, a push or a claim references."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ckstore.ops.call_threads import for_each
from ckstore.remote import keys
from ckstore.remote.documents.claims import claims_at, read_claim
from ckstore.remote.keys import Place
from ckstore.remote.objects import THREADS, Objects, Remote
from ckstore.remote.pruning.intent_record import IntentRecord, finish, is_intent, read_intent, void
from ckstore.remote.source import ObjectSource, read_manifest


@dataclass(slots=True)
class RemoteSurvey:
    """Finds the referenced blobs of a remote for one pruner, repeatedly. Each manifest is read only once.

    Attributes:
        remote: The remote.
        hash_prefix: The prefix of its digests.
        now: The time by the server's clock.
        grace_s: How long leftovers of a dead push are kept.
        changes: Whether intents of dead pushes may be voided, finished and deleted. If False, nothing is changed, and
            every intent that is not void counts as the intent of a live push.
        voided, finished: Keys of the intents that were voided and finished.
    """

    remote: Remote
    hash_prefix: str
    now: datetime
    grace_s: float
    changes: bool
    voided: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    _blobs_of: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    # Checkpoints that the last listing found with a deletion mark, but whose deletion is not finished.
    _half_removed: list[Place] = field(default_factory=list)

    def named(self) -> set[str]:
        """Return the digests of all referenced blobs.

        Raises:
            CkstoreError: An object that references blobs cannot be read, so a pruner must stop.
        """
        # Intents are read before manifests. A push writes its manifest before it deletes its intent, so at least one of
        # the two is found.
        found: set[str] = set()
        # Void intents do not count, and neither do stale ones, which `_is_dead` voids.
        for record in [one for one in self._records() if not self._is_dead(one)]:
            found.update(record.blobs)
        source = ObjectSource(self.remote.objects, self.remote.name)
        places, self._half_removed, _ = source.listed()
        unread = [place for place in places if place not in self._blobs_of]
        for_each(lambda place: self._read(source, place), unread, threads=THREADS)
        for place in places:
            found.update(self._blobs_of.get(place, ()))
        # A claimed checkpoint may lack its manifest: it was pushed again, and then an earlier deletion, which had been
        # suspended, resumed and removed the new manifest. In this case, the claim names the blobs.
        there = {*places}
        for claim in claims_at(self.remote.objects):
            said = None if claim.place in there else read_claim(self.remote.objects, claim)
            found.update(() if said is None else said.blobs)
        return found

    def finish_removals(self) -> None:
        """Delete leftovers of checkpoints whose deletion was interrupted, unless the checkpoint is pushed again."""
        # The order of the reads matters: first the listing in `named`, then intents, marks and claims. A push first
        # deletes the mark, then completes its checkpoint, and only then deletes its intent. As in every deletion,
        # claims are read after the mark.
        objects = self.remote.objects
        records = self._records() if self._half_removed else []
        pushed = [place for record in records for place in record.places]
        marked = [place for place in self._half_removed if tuple(place) not in pushed and objects.head(place.dropped)]
        claimed = {claim.place for claim in claims_at(objects)} if marked else set()
        for place in marked:
            if place not in claimed:
                remove_documents(objects, place)

    def end_intents(self) -> list[IntentRecord]:
        """Finish or delete the intents of dead pushes, if no push is alive. Return the intents of live pushes.

        If a push is alive, nothing is changed.
        """
        live = [record for record in self._records() if record.state == "uploading" and not self._is_stale(record)]
        for record in [] if live else self._records():
            if record.state != "committing":
                self.remote.objects.delete([record.listed.key])
            elif finish(self.remote.objects, record, self.hash_prefix):
                self.finished.add(record.listed.key)
        return live

    def _read(self, source: ObjectSource, place: Place) -> None:
        found = read_manifest(source, place, self.hash_prefix)
        if found is not None:
            self._blobs_of[place] = tuple(file.digest for file in found.files)

    def _records(self) -> list[IntentRecord]:
        listed = [one for one in self.remote.objects.list(keys.INTENTS) if is_intent(one.key)]
        records = (read_intent(self.remote.objects, one) for one in listed)
        return [record for record in records if record is not None]

    def _is_dead(self, record: IntentRecord) -> bool:
        objects, key = self.remote.objects, record.listed.key
        old = self._older(record, self.grace_s)
        if record.state == "void":
            if old and self.changes:
                objects.delete([key])
            return True
        if not self.changes:
            return False
        if record.state == "committing":
            if old and finish(objects, record, self.hash_prefix):
                self.finished.add(key)
            return False  # this survey counts the blobs of the intent, and the next one those of the manifest
        if self._is_stale(record) and void(objects, record):
            self.voided.add(key)
            return True
        return False

    def _is_stale(self, record: IntentRecord) -> bool:
        return record.state == "uploading" and self._older(record, record.life_s)

    def _older(self, record: IntentRecord, seconds: float) -> bool:
        return self.now - record.listed.modified > timedelta(seconds=seconds)


def remove_documents(objects: Objects, place: Place) -> None:
    """Delete the documents of a checkpoint that has a deletion mark."""
    objects.delete([place.manifest])  # first, so that a reader that finds the manifest also finds the other documents
    objects.delete([place.plain, place.annotations])
