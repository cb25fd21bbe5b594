"""Verify a remote: list it, read the manifests of its checkpoints, and read its blobs back.

Each blob on a remote is one object, whose name contains the digest of its bytes. If the bytes are encoded, it is the
digest of the encoded bytes. So a blob is verified without decoding it.
"""

from __future__ import annotations

import math
import random
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from ckstore.errors import RemoteDenied, RemoteError, RemoteUnavailable
from ckstore.fs import dirfd_stat
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import BlobRecord
from ckstore.model.times import text_of_time
from ckstore.model.words import PUSH_AGAIN, mending_there
from ckstore.objects.remote.remote_only import holders_at
from ckstore.ops.call_threads import for_each
from ckstore.ops.context import Context
from ckstore.ops.mirror_record import note_missing, read_mirrored
from ckstore.ops.pace import RateLimiter, ReadBudget
from ckstore.ops.refs.find import AnyRef, text_of
from ckstore.ops.refs.listing import infos
from ckstore.ops.verify.verify import Options
from ckstore.remote import keys, record
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.documents.condemned_names import read_condemned
from ckstore.remote.documents.remote_info import check_takes
from ckstore.remote.key_lookup import ask, look
from ckstore.remote.keys import Place
from ckstore.remote.objects import THREADS, ObjectEntry, Remote
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_refs import find_on_remote
from ckstore.remote.source import ObjectSource, read_manifest
from ckstore.remote.verification.remote_verify_report import RemoteDamage, RemoteVerifyReport

# After a mismatch, a blob is read once more, since a bit may have flipped during the transfer.
_READS = 2


class RemoteVerification:
    """One verification of a remote."""

    def __init__(self, context: Context, remote: Remote, options: Options) -> None:
        self._context, self._remote, self._options = context, remote, options
        self._may_write = not context.readonly and not context.writes_disabled_because
        self._source = ObjectSource(remote.objects, remote.name)
        self._record = record.read_record(context.layout, remote.name)
        self._mutex = threading.Lock()
        self._checkpoint_count = self._read_count = self._checked_bytes = 0
        self._users: defaultdict[BlobRecord, list[Place]] = defaultdict(list)  # blob -> checkpoints that need it
        # digest -> a blob that was read. `_verified` has the intact blobs, and `_damaged` those with wrong bytes.
        self._verified: dict[str, ObjectEntry] = {}
        self._damaged: dict[str, ObjectEntry] = {}
        self._damage: dict[str, RemoteDamage] = {}  # key of the object -> its problem
        self._lacking: dict[str, str] = {}  # id of a checkpoint that must be pushed again -> the reason

    def run(self, ref: AnyRef | None) -> RemoteVerifyReport:
        """Verify one checkpoint, or the whole remote; see `Remotes.verify`."""
        options, remote = self._options, self._remote
        info = check_takes(remote, self._context.settings)
        as_of = text_of_time(datetime.now(UTC))
        if ref is None:
            self._read_manifests(self._listed(info.uuid))
        else:
            text = ref.id if isinstance(ref, CheckpointInfo) else text_of(ref)
            prefix = self._context.layout.hash_prefix
            place = find_on_remote(self._source, text, run=self._context.run, hash_prefix=prefix)
            self._read_manifests([place])
        found = self._find_blobs()
        budget = ReadBudget(options.budget_s)
        try:
            if options.mode != "quick":
                self._read_back(self._chosen(found), found, budget)
        finally:
            self._keep_results()
        return RemoteVerifyReport(
            remote=remote.name,
            as_of=as_of,
            checkpoint_count=self._checkpoint_count,
            blob_count=len(self._users),
            blob_bytes=sum(blob.nbytes for blob in self._users),
            read_count=self._read_count,
            checked_bytes=self._checked_bytes,
            damage=tuple(self._damage[key] for key in sorted(self._damage)),
            sample=1.0 if options.sample is None else float(options.sample),
            mode=options.mode,
            in_time=not budget.ended,
        )

    # ------------------------------------------------------------------------------------- the checkpoints

    def _listed(self, uuid: str) -> Sequence[Place]:
        """Return the checkpoints that the remote lists. Record those that it should have but does not list."""
        context, name = self._context, self._remote.name
        listing = self._source.listed()
        there = {*listing.places}
        mirrored = read_mirrored(context.layout, name)
        pushed = mirrored.ids | mirrored.missing.keys() | self._record.checkpoints.keys()
        absent = {place: info for info in infos(context, superseded=True) if (place := place_of(info)) not in there}
        for place, info in absent.items():
            is_evicted = any(holder.uuid == uuid for holder in holders_at(context.layout.checkpoint(info.key)))
            if not is_evicted and info.id not in pushed:
                continue
            # Look the checkpoint up again, since another client may have pushed or deleted it during the listing.
            documents = ask(self._remote.objects, [place.manifest, place.dropped])
            if place.manifest in documents and place.dropped not in documents:
                continue
            if is_evicted:
                do = "restore the objects of the remote from a backup, or delete the checkpoint"
                what = f"{name} should have the only copy, but does not list it"
                self._note("missing", place.manifest, what, [place], do)
            # If it has no deletion mark, neither a policy nor a user deleted it, so it is missing.
            elif place.dropped not in documents:
                told = f"the checkpoint was pushed to {name}, which does not list it"
                self._note("missing", place.manifest, told, [place], PUSH_AGAIN)
        return listing.places

    def _read_manifests(self, places: Iterable[Place]) -> None:
        def read(place: Place) -> None:
            try:
                found = read_manifest(self._source, place, self._context.layout.hash_prefix)
            except (RemoteDenied, RemoteUnavailable):  # this is not a problem of the manifest
                raise
            except RemoteError as error:
                do = error.hint or mending_there()
                self._note("damaged", place.manifest, error.message, [place], do, sent_again=False)
                return
            if found is None:  # it was deleted after the listing
                return
            with self._mutex:
                self._checkpoint_count += 1
                for blob in found.files:
                    self._users[blob].append(place)

        for_each(read, places, threads=THREADS, stopping=MemoryBudget().ending(self._source.close))

    # ------------------------------------------------------------------------------------- the blobs

    def _find_blobs(self) -> Mapping[str, ObjectEntry]:
        """Return the objects of the needed blobs, by digest. Record those that are missing or have a wrong size."""
        objects = self._remote.objects
        found: dict[str, ObjectEntry] = {}
        lacking = [*self._users]
        condemned = read_condemned(objects)
        for _ in range(2):  # twice, since a push may meanwhile have sent a blob under another name
            by_key = {keys.blob(str(condemned.name(blob.digest))): blob.digest for blob in lacking}
            listed, self._record.blob_count = look(objects, by_key, self._record.blob_count)
            found |= {by_key[key]: entry for key, entry in listed.items()}
            lacking = [blob for blob in lacking if blob.digest not in found or _size_of(found, blob) != blob.nbytes]
            if not lacking:
                break
            condemned = read_condemned(objects)
        for digest in found:
            self._source.use(digest, str(condemned.name(digest)))
        existing = self._existing(place for blob in lacking for place in self._users[blob])
        for blob in lacking:
            key = keys.blob(str(condemned.name(blob.digest)))
            if blob.digest in found:
                told = f"{key} has {_size_of(found, blob)} bytes, wanted {blob.nbytes}"
                self._note("damaged", key, told, existing & {*self._users[blob]}, PUSH_AGAIN)
            else:
                told = f"{key} is missing on the remote"
                self._note("missing", key, told, existing & {*self._users[blob]}, PUSH_AGAIN)
        return found

    def _chosen(self, found: Mapping[str, ObjectEntry]) -> list[BlobRecord]:
        """Return the blobs to read back. Those that were never read back before come first, unless all are read."""
        blobs = [blob for blob in self._users if blob.digest in found and _size_of(found, blob) == blob.nbytes]
        if self._options.mode == "full":
            return blobs

        def was_read(blob: BlobRecord) -> bool:
            seen = self._record.blobs.get(blob.digest)
            return seen is not None and seen.how == "read" and seen.is_still(found[blob.digest])

        drawn = random.SystemRandom().random
        blobs.sort(key=lambda blob: (was_read(blob), drawn()))
        return blobs[: math.ceil((self._options.sample or 1) * len(blobs))]

    def _read_back(self, chosen: Sequence[BlobRecord], found: Mapping[str, ObjectEntry], budget: ReadBudget) -> None:
        options, memory = self._options, MemoryBudget()
        limiter = None if options.rate_bytes_s is None else RateLimiter(options.rate_bytes_s)
        chosen_bytes = sum(blob.nbytes for blob in chosen)

        def read(blob: BlobRecord) -> None:
            if not budget.begin(blob.nbytes):
                return
            if limiter is not None:
                limiter.wait(blob.nbytes)
            entry = found[blob.digest]
            word = self._problem_of(blob, memory)
            budget.done(blob.nbytes)
            if word == "missing":
                told = f"{entry.key} is missing on the remote"
                self._note(word, entry.key, told, self._existing(self._users[blob]), PUSH_AGAIN)
            elif word == "damaged":
                told, do = f"{entry.key} does not match the digest in its name", mending_there(entry.key)
                if self._may_write and dirfd_stat.exists(self._context.layout.blob(blob.digest)):
                    do = "push that checkpoint again from this store"
                self._note(word, entry.key, told, self._existing(self._users[blob]), do)
            with self._mutex:
                if word == "damaged":
                    self._damaged[blob.digest] = entry
                self._read_count += 1
                self._checked_bytes += blob.nbytes
                if not word:
                    self._verified[blob.digest] = entry

        def say() -> None:
            if options.progress is not None:
                options.progress(self._checked_bytes, chosen_bytes)

        for_each(read, chosen, threads=THREADS, say=say, stopping=memory.ending(self._remote.objects.close))
        say()

    def _problem_of(self, blob: BlobRecord, memory: MemoryBudget) -> Literal["", "missing", "damaged"]:
        with memory.lending(blob.nbytes) as buffer:
            for _ in range(_READS):
                if not self._source.read_any(blob.digest, buffer):  # this also tries newer names of the blob
                    return "missing"
                if algorithm_of(blob.digest).digest(buffer) == blob.digest:
                    return ""
        return "damaged"

    # ------------------------------------------------------------------------------------- results

    def _existing(self, places: Iterable[Place]) -> set[Place]:
        """Return the checkpoints that still exist. Another client may have deleted some since the listing."""
        wanted = {*places}
        documents = {key for place in wanted for key in (place.manifest, place.dropped)}
        found, _ = look(self._remote.objects, documents, self._checkpoint_count)
        return {place for place in wanted if place.manifest in found and place.dropped not in found}

    def _note(
        self,
        word: Literal["missing", "damaged"],
        key: str,
        what: str,
        users: Collection[Place],
        do: str,
        *,
        sent_again: bool = True,
    ) -> None:
        """Record the problem of an object, unless no existing checkpoint needs it."""
        names = tuple(dict.fromkeys(place.name for place in sorted(users)))
        if not names:
            return
        with self._mutex:
            self._damage[key] = RemoteDamage(word, key, what, names, do)
            if sent_again:
                self._lacking.update((place.id, what) for place in users)

    def _keep_results(self) -> None:
        """Record the results. An eviction then relies on the intact blobs, and a push sends the damaged ones again."""
        if not self._may_write:
            return
        layout, name = self._context.layout, self._remote.name
        known = record.read_record(layout, name)  # pushes may have changed the record meanwhile
        known.blob_count = self._record.blob_count
        known.blobs.update((digest, record.seen(entry, "read")) for digest, entry in self._verified.items())
        for blob in filter(None, map(keys.blob_in, self._damage)):
            known.blobs.pop(blob.digest, None)
        known.blobs.update((digest, record.seen(entry, "damaged")) for digest, entry in self._damaged.items())
        record.write_record(layout, name, known)
        note_missing(layout, name, self._lacking)


def _size_of(found: Mapping[str, ObjectEntry], blob: BlobRecord) -> int:
    return found[blob.digest].nbytes
