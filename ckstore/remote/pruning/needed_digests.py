"""What a remote needs: every digest that a checkpoint or a push names. Intents first, manifests after them."""

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
    """Looks at a remote for one pruner, again and again; manifests are read once, since they never change.

    Attributes:
        remote: Where.
        hash_prefix: Of its digests.
        now: By the server's clock.
        grace_s: How long a push that stopped is left alone.
        changes: Whether intents of dead pushes are voided, finished and removed; else they count as alive.
        voided, finished: Intents of which that was done.
    """

    remote: Remote
    hash_prefix: str
    now: datetime
    grace_s: float
    changes: bool
    voided: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    _blobs_of: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    # Checkpoints whose removal ended behind its mark, as they were listed last.
    _half_removed: list[Place] = field(default_factory=list)

    def named(self) -> set[str]:
        """Return every digest that is needed.

        Raises:
            CkstoreError: Something that names blobs cannot be read; a pruner must stop.
        """
        # A push writes its manifest before it removes its intent: in this order one of the two is seen.
        found: set[str] = set()
        for record in self._intents():
            found.update(record.blobs)
        source = ObjectSource(self.remote.objects, self.remote.name)
        places, self._half_removed, _ = source.listed()
        unread = [place for place in places if place not in self._blobs_of]
        for_each(lambda place: self._read(source, place), unread, threads=THREADS)
        for place in places:
            found.update(self._blobs_of.get(place, ()))
        # A removal that slept may have hit a checkpoint that a push brought back, and on which a store relies.
        there = {*places}
        for claim in claims_at(self.remote.objects):
            said = None if claim.place in there else read_claim(self.remote.objects, claim)
            found.update(() if said is None else said.blobs)
        return found

    def finish_removals(self) -> None:
        """Remove what is left of checkpoints whose removal was cut off; those that are pushed again stay."""
        # Intents after that listing, and the mark after the intents: a push has its intent until it is whole, and takes
        # the mark away before that. Claims after the mark, as every removal does.
        objects = self.remote.objects
        records = self._records() if self._half_removed else []
        pushed = [place for record in records for place in record.places]
        marked = [place for place in self._half_removed if tuple(place) not in pushed and objects.head(place.dropped)]
        claimed = {claim.place for claim in claims_at(objects)} if marked else set()
        for place in marked:
            if place not in claimed:
                remove_documents(objects, place)

    def end_intents(self) -> list[IntentRecord]:
        """Finish or remove every intent of a dead push, where nothing else writes; return those that are not stale."""
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
            files = found.manifest.blobs if found.encoding is None else found.encoding.files
            self._blobs_of[place] = tuple(file.digest for file in files)

    def _records(self) -> list[IntentRecord]:
        listed = [one for one in self.remote.objects.list(keys.INTENTS) if is_intent(one.key)]
        records = (read_intent(self.remote.objects, one) for one in listed)
        return [record for record in records if record is not None]

    def _intents(self) -> list[IntentRecord]:
        """Return the intents that count, after what is to be done with those of dead pushes."""
        return [record for record in self._records() if not self._is_dead(record)]

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
            return False  # its blobs count in this look; its manifest names them in the next
        if self._is_stale(record) and void(objects, record):
            self.voided.add(key)
            return True
        return False

    def _is_stale(self, record: IntentRecord) -> bool:
        return record.state == "uploading" and self._older(record, record.life_s)

    def _older(self, record: IntentRecord, seconds: float) -> bool:
        return self.now - record.listed.modified > timedelta(seconds=seconds)


def remove_documents(objects: Objects, place: Place) -> None:
    """Remove the documents of a checkpoint that has the mark that it was removed."""
    objects.delete([place.manifest])  # first: a reader that finds it finds the others, too
    objects.delete([place.plain, place.annotations])
