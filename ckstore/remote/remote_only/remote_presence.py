"""Checks whether a remote has every byte of a checkpoint, by comparing digests instead of trusting the service.

A blob is known to be intact if this store sent it in a request whose body the service checks, or read it back, and the
remote still lists that version. All other blobs are read back.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.manifest.stored import StoredForm
from ckstore.ops.call_threads import for_each
from ckstore.ops.context import Context
from ckstore.remote import keys, record
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.documents.claims import Claim, write_claim
from ckstore.remote.documents.condemned_names import read_condemned, unmark_needed
from ckstore.remote.key_lookup import ask, is_asked
from ckstore.remote.keys import Place
from ckstore.remote.objects import ObjectEntry, Remote
from ckstore.remote.pull import fetch_checked
from ckstore.remote.push import TransferLimits
from ckstore.remote.source import ObjectSource, read_manifest


class PresenceCheck:
    """Checks which checkpoints a remote has."""

    def __init__(self, context: Context, remote: Remote, manner: TransferLimits) -> None:
        self.read_back_bytes = 0  # bytes that were read back for comparison
        self._manner = manner
        self._context, self._remote = context, remote
        self._record = record.read_record(context.layout, remote.name)
        self._source = ObjectSource(remote.objects, remote.name)
        # Key -> entry of a blob that a lookup or a listing found. A blob that was not found then counts as missing.
        self._listed: dict[str, ObjectEntry] = {}
        self._asked_count = 0
        self._has_all = False
        self._condemned = read_condemned(remote.objects)
        # Checkpoint -> form, from its manifest. The manifest is read only once. Later, only its existence is checked.
        self._forms: dict[Place, StoredForm] = {}

    def finds(self, place: Place) -> bool:
        """Return whether a remote has the manifest of a checkpoint. This is the first check, before the claim."""
        there = read_manifest(self._source, place, self._context.layout.hash_prefix)
        if there is not None:
            self._forms[place] = there.form
        return there is not None

    def claim(self, wanted: Sequence[tuple[Place, str, Sequence[BlobRecord]]]) -> None:
        """Claim checkpoints, each with the given uuid of its claim, and discard the results of all earlier lookups."""
        objects, store = self._remote.objects, self._context.settings.uuid
        needed: set[str] = set()

        def claim(one: tuple[Place, str, Sequence[BlobRecord]]) -> None:
            place, uuid, blobs = one
            form = self._forms[place]
            own = {file for blob in blobs for file in form.files_of(blob.digest)}
            write_claim(self._context, objects, Claim(store, place, uuid), own)
            needed.update(own)

        for_each(claim, wanted, threads=self._manner.threads, stopping=objects.close)
        if needed:
            self._condemned = unmark_needed(objects, needed, cas=self._remote.cas)
        self._listed, self._asked_count, self._has_all = {}, 0, False

    def end_claim(self, place: Place, uuid: str) -> None:
        """Delete a claim on which the store does not rely."""
        self._remote.objects.delete([Claim(self._context.settings.uuid, place, uuid).key])

    def lacks(self, place: Place, blobs: Sequence[BlobRecord], *, read: bool) -> str:
        """Return a sentence that explains why a remote lacks a checkpoint, or "" if the remote has the checkpoint.

        Args:
            place: The checkpoint.
            blobs: Its blobs.
            read: Whether unverified blobs are read back and compared. If False, only their sizes are checked.
        """
        objects, name = self._remote.objects, self._remote.name
        if objects.head(place.manifest) is None or objects.head(place.dropped) is not None:
            return f"{name} does not have it"
        form = self._forms[place]
        sizes = dict(form.stored(blobs))
        needed = {file for blob in blobs for file in form.files_of(blob.digest)}
        self._find_keys([keys.blob(str(self._condemned.name(digest))) for digest in sorted(needed)])
        unknown = []
        for blob in blobs:
            files = form.files_of(blob.digest)
            for file in files:
                current = str(self._condemned.name(file))
                listed = self._listed.get(keys.blob(current))
                if listed is None or listed.nbytes != sizes[file]:
                    return f"{name} does not have blob {file}"
                self._source.use(file, current)
            if not all(map(self._is_known, files)):
                unknown.append(blob)
        if unknown and read:
            self._read_back(place, unknown)
            for file in {file for blob in unknown for file in form.files_of(blob.digest)}:
                self._record.blobs[file] = record.seen(self._current(file), "read")
        return ""

    def _read_back(self, place: Place, blobs: Sequence[BlobRecord]) -> None:
        """Read blobs back concurrently, and compare them."""
        budget = MemoryBudget()

        def read(blob: BlobRecord) -> None:
            with budget.lending(blob.nbytes) as buffer:
                fetch_checked(self._source, place, blob, buffer, budget=budget)
            self.read_back_bytes += blob.nbytes

        for_each(read, blobs, threads=self._manner.threads, stopping=budget.ending(self._source.close))

    def _find_keys(self, wanted: Sequence[str]) -> None:
        """Find some keys on the remote, by lookups or by a listing of all blobs, whichever is cheaper."""
        new = [] if self._has_all else [key for key in wanted if key not in self._listed]
        self._asked_count += len(new)
        if is_asked(self._asked_count, self._record.blob_count):
            self._listed.update(ask(self._remote.objects, new))
        elif new:
            self._listed = {listed.key: listed for listed in self._remote.objects.list(keys.BLOBS)}
            self._record.blob_count = len(self._listed)
            self._has_all = True

    def _current(self, digest: str) -> ObjectEntry:
        return self._listed[keys.blob(str(self._condemned.name(digest)))]

    def _is_known(self, digest: str) -> bool:
        seen = self._record.blobs.get(digest)
        if seen is None or not seen.is_still(self._current(digest)):
            return False
        return seen.how == "read" or (seen.how == "sent" and self._remote.checks_bodies)

    def keep(self) -> None:
        """Save the record of the remote."""
        if not self._context.readonly:
            record.write_record(self._context.layout, self._remote.name, self._record)
