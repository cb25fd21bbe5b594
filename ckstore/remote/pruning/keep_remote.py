"""Applies the policy `keep_remote`, which selects the checkpoints of this store's runs that the mirror keeps.

A checkpoint whose bytes are only on the mirror is dropped locally before it is deleted on the mirror, because a
checkpoint whose bytes do not exist must not be listed. A deletion on the mirror does not affect local bytes.

``tests/protocol/two_stores.py`` models this policy together with another store that mirrors the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from ckstore.errors import CkstoreError, InUse, NoSuchRef, RemoteError
from ckstore.fs import locks
from ckstore.model.checkpoint.annotations import parse_annotations
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Manifest
from ckstore.model.reports.retention_report import RetentionReport, Skipped
from ckstore.model.seal import read
from ckstore.model.settings.retention import RetentionPolicy
from ckstore.model.settings.retention_plan import Candidate, PlanEntry, RetentionPlan, plan
from ckstore.objects.checkpoints import judge_blobs
from ckstore.objects.documents.pins import read_pins
from ckstore.objects.remote.remote_only import read_remote_only
from ckstore.ops.api_calls import why_of
from ckstore.ops.config_file import setting_of
from ckstore.ops.context import Context
from ckstore.ops.events import note
from ckstore.ops.free import reclaim
from ckstore.ops.free.drop import check_droppable, drop, make_kept_durable
from ckstore.ops.mirror_record import note_pruned, wanted_there
from ckstore.ops.mirror_settings import MIRROR
from ckstore.ops.refs.find import open_directory
from ckstore.ops.refs.listing import infos
from ckstore.remote.documents.claims import Claim, claims_at, end_claims, needed_claims, who_claims
from ckstore.remote.documents.remote_info import read_info
from ckstore.remote.documents.run_owner import read_owner
from ckstore.remote.keys import Place
from ckstore.remote.objects import OF_ALL, Remote
from ckstore.remote.pruning.needed_digests import remove_documents
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_refs import facts_of
from ckstore.remote.small_objects import read_pin, read_tags
from ckstore.remote.source import ObjectSource, read_manifest


@dataclass
class KeepRemote:
    """Applies a policy to a mirror.

    Attributes:
        context: The store.
        remote: Its mirror.
        policy: The policy that selects the checkpoints to keep.
        known: Facts about checkpoints on the mirror that the store does not list. They are kept, so that a mirroring
            process reads each checkpoint only once.
    """

    context: Context
    remote: Remote
    policy: RetentionPolicy
    known: dict[Place, Candidate] = field(default_factory=dict)
    # Id of a checkpoint on the mirror whose step has a newer checkpoint, or whose run was renamed -> location of the
    # newer or renamed checkpoint.
    _replaced: dict[str, Place] = field(default_factory=dict, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def plan(self) -> RetentionPlan:
        """Return a plan with the checkpoints that the mirror keeps and drops, and the reasons.

        Raises:
            CkstoreError: A tag, a pin or a manifest on the mirror cannot be read, so the plan is unknown.
        """
        here = {info.id: info for info in infos(self.context, superseded=True)}
        self._notes.clear()
        source = ObjectSource(self.remote.objects, self.remote.name)
        # The checkpoints are listed before the owners are read. A store that takes a run over pushes only after it is
        # recorded as the owner. So if a checkpoint of that store is listed, the store is already the recorded owner.
        listed = source.places()
        runs = {run for run in self.context.layout.runs() if self._is_responsible(self.remote, run)}
        places = [place for place in listed if place.run in runs]
        # Checkpoints that are not pushed yet do not count. Otherwise the policy would count them instead of older ones,
        # and delete the older ones.
        pushed = {place.id for place in places}
        # A tag or a pin may have been added locally after the push. If a pin cannot be read, nothing is deleted.
        pins = read_pins(self.context.layout)
        stays = wanted_there(self.policy, pins, [info for info in here.values() if info.id in pushed])
        meant, replaced = self._candidates(source, places, here, stays)
        made = plan(self.policy, meant, datetime.now(UTC))
        by_order = sorted([*made.entries, *replaced], key=lambda entry: (entry.run, entry.info.order))
        return replace(made, entries=tuple(by_order), notes=(*made.notes, *self._notes))

    def planned(self) -> RetentionReport:
        """Return the report of what `apply` would delete, without deleting anything."""
        made = self.plan()
        here = {info.id: info for info in infos(self.context, superseded=True)}
        uuid = read_info(self.remote.objects, self.remote.name).uuid if made.dropped else ""
        needed = needed_claims(self.context, self.remote) if made.dropped else []
        claimed = who_claims(self.context, self.remote, needed)
        going = [entry.info for entry in made.dropped]
        looked = [Skipped(info, self._why_kept(here.get(info.id), info, uuid, claimed)) for info in going]
        dropped = tuple(one.info for one in looked if not one.reason)
        return RetentionReport(made, dropped, tuple(one for one in looked if one.reason), dry_run=True)

    def _why_kept(
        self, local: CheckpointInfo | None, info: CheckpointInfo, uuid: str, claimed: Mapping[Place, str]
    ) -> str:
        """Return why `apply` would keep a checkpoint that the plan drops, or an empty string."""
        if local is not None and local.elsewhere:
            try:
                with open_directory(self.context, local) as directory:
                    is_dropped = _is_only_at(uuid, directory.manifest, directory.lock)
                if is_dropped:  # `apply` drops it locally, which ends the claim of this store
                    check_droppable(self.context, local)
                    return ""
            except InUse as error:
                return error.message
            except (FileNotFoundError, NoSuchRef):  # it was deleted locally
                pass
        return claimed.get(place_of(info), "")

    def apply(self) -> RetentionReport:
        """Delete from the mirror the checkpoints that the policy does not keep."""
        self.context.check_writable()
        made = self.plan()
        skipped: list[Skipped] = []
        going: list[PlanEntry] = []
        here = {info.id: info for info in infos(self.context, superseded=True)}
        uuid = read_info(self.remote.objects, self.remote.name).uuid if made.dropped else ""
        for entry in made.dropped:
            if problem := self._drop_locally(here.get(entry.info.id), entry, uuid):
                skipped.append(Skipped(entry.info, problem))
            else:
                going.append(entry)
        if going and setting_of(self.context.layout, MIRROR) == self.remote.name:
            note_pruned(self.context.layout, self.remote.name, [entry.info.id for entry in going])
        dropped = self._remove(self.remote, going, skipped)
        reasons = {entry.info.id: "; ".join(entry.reasons) for entry in going}
        for info in dropped:
            why = f"deleted from {self.remote.name} by keep_remote: {reasons[info.id]}"
            note(self.context, "pruned", info.key.run_step, id=info.id, why=why)
        return RetentionReport(made, tuple(dropped), tuple(skipped))

    def _remove(self, remote: Remote, going: list[PlanEntry], skipped: list[Skipped]) -> list[CheckpointInfo]:
        """Delete checkpoints from the remote, except those on which a store relies. Return the deleted ones."""
        # `end_claims` also ends the claims of this store on checkpoints that it has just dropped.
        claimed = who_claims(self.context, remote, end_claims(self.context, remote)) if going else {}
        chosen: dict[Place, CheckpointInfo] = {}
        # Replaced checkpoints are handled first, while the checkpoints that replace them still exist.
        for entry in sorted(going, key=lambda entry: entry.info.id not in self._replaced):
            place, newer = place_of(entry.info), self._replaced.get(entry.info.id)
            why = claimed.get(place, "")
            if not why and newer is not None:
                exists = remote.objects.head(newer.manifest) is not None and remote.objects.head(newer.dropped) is None
                why = "" if exists else f"the newer checkpoint of its step was deleted meanwhile: {newer.id}"
            if why:
                skipped.append(Skipped(entry.info, why))
            else:
                chosen[place] = entry.info
        claims, failed = remove_there(remote, chosen)
        stay = who_claims(self.context, remote, claims) | failed
        skipped += [Skipped(info, stay[place]) for place, info in chosen.items() if place in stay]
        return [info for place, info in chosen.items() if place not in stay]

    def _candidates(
        self, source: ObjectSource, places: list[Place], here: dict[str, CheckpointInfo], stays: dict[str, str]
    ) -> tuple[list[Candidate], list[PlanEntry]]:
        """Return the newest checkpoint of each step on the mirror, and plan entries for replaced checkpoints."""
        remote = self.remote
        self._read_facts(source, [place for place in places if place.id not in here and place not in self.known])
        tags: dict[str, list[str]] = {}
        # If a tag or a pin cannot be read, nothing is deleted, because it may protect a checkpoint.
        for name, tag in read_tags(remote.objects, strict=True).items():
            tags.setdefault(tag.id, []).append(name)
        now = datetime.now(UTC)
        pins: dict[str, list[str]] = {}
        for name, data in source.pins().items():
            pin = read_pin(data, name, remote.name)
            if not pin.expired(now):
                pins.setdefault(pin.id, []).append(str(pin))
        others = [claim for claim in claims_at(remote.objects) if claim.store != self.context.settings.uuid]
        claimed = who_claims(self.context, remote, others)
        found: dict[tuple[str, int], list[Candidate]] = {}
        for place in places:
            info = here.get(place.id)
            candidate = self.known.get(place) if info is None else Candidate(info)
            if candidate is None:  # it was deleted from the mirror meanwhile
                continue
            if self.policy.budget is not None and not candidate.blobs:
                manifest = read_manifest(source, place, self.context.layout.hash_prefix)
                blobs = () if manifest is None else manifest[0].blobs
                candidate = replace(candidate, blobs={blob.digest: blob.nbytes for blob in blobs})
            candidate = replace(
                candidate,
                tags=tuple(sorted(tags.get(place.id, ()))),
                pins=tuple(pins.get(place.id, ())),
                wanted_by=stays.get(place.id, "") or claimed.get(place, ""),
            )
            found.setdefault(place.run_step, []).append(candidate)
        # If this store no longer has a checkpoint because the run was renamed, the renamed checkpoint replaces it.
        everything = [one for several in found.values() for one in several]
        copies = {_unchanged_by_rename(one.info): one for one in everything if one.info.id in here}
        meant, replaced = [], []
        for listed in found.values():
            moved = [one for one in listed if one.info.id not in here and _unchanged_by_rename(one.info) in copies]
            for one in moved:
                self._replaced[one.info.id] = place_of(copies[_unchanged_by_rename(one.info)].info)
                replaced.append(_replaced_entry(one, copies[_unchanged_by_rename(one.info)], is_here=False))
            several = [one for one in listed if one not in moved]
            if not several:
                continue
            # The newest of several checkpoints at a step is current.
            *older, newest = sorted(several, key=lambda candidate: candidate.info.order)
            meant.append(newest)
            self._replaced.update((candidate.info.id, place_of(newest.info)) for candidate in older)
            current = {info.id for info in here.values() if not info.superseded}
            replaced += [
                _replaced_entry(candidate, newest, is_here=candidate.info.id in current) for candidate in older
            ]
        return meant, replaced

    def _is_responsible(self, remote: Remote, run: str) -> bool:
        """Whether this store's policy applies to a run. It does not apply if another store mirrors the run."""
        found = read_owner(remote.objects, run)
        if found is None or found[0].store == self.context.settings.uuid:
            return True
        owner = found[0]
        self._notes.append(
            f"the run {run} is mirrored by the store {owner.path} on {owner.host}, whose policy applies to it"
        )
        return False

    def _read_facts(self, source: ObjectSource, places: list[Place]) -> None:
        for place, info in facts_of(source, places, self.context.layout.hash_prefix).items():
            data = source.annotations(place)
            if data is not None:
                said = read(data, parse_annotations, f"the annotations of {place.name} at {source.name}")
                info = info.with_annotations(said.metrics, said.notes)  # noqa: PLW2901 - the same checkpoint
            self.known[place] = Candidate(info)

    def _drop_locally(self, info: CheckpointInfo | None, entry: PlanEntry, uuid: str) -> str:
        """Drop a checkpoint locally if only this mirror has its bytes.

        Returns:
            The reason why the mirror must keep the checkpoint, or "".
        """
        if info is None or not info.elsewhere:
            return ""
        context = self.context
        try:
            with open_directory(context, info) as directory:
                manifest = directory.manifest
                if not _is_only_at(uuid, manifest, directory.lock):
                    return ""
            make_kept_durable(context, info.run)
            why = f"its bytes are only on {self.remote.name}, where keep_remote deletes it: {'; '.join(entry.reasons)}"
            dropped = drop(context, info, why, last=partial(_check_only_at, uuid, manifest))
        except InUse as error:
            return error.message
        except (FileNotFoundError, NoSuchRef):  # it was deleted locally
            return ""
        except (CkstoreError, OSError) as error:  # this must not prevent the deletion of other checkpoints
            return f"it could not be dropped from this store: {why_of(error)}"
        reclaim.free_unused(context, dropped.digests)
        return ""


def _check_only_at(uuid: str, manifest: Manifest, lock: locks.DirectoryLock) -> None:
    """Raise `InUse` if a pull has restored the bytes of the checkpoint in this store."""
    if not _is_only_at(uuid, manifest, lock):
        raise InUse(f"{manifest.name} has its bytes in this store again")


def _is_only_at(uuid: str, manifest: Manifest, lock: locks.DirectoryLock) -> bool:
    """Whether a locked checkpoint lacks bytes in this store that only the remote with this UUID has."""
    document = read_remote_only(lock.fd)
    # An eviction that was killed before it moved the blobs has written the document, but all blobs are still local.
    is_lacking = bool(judge_blobs(lock.inside, lock.fd, manifest).elsewhere)
    return is_lacking and document is not None and all(holder.uuid == uuid for holder in document.remotes)


def _unchanged_by_rename(info: CheckpointInfo) -> tuple[object, ...]:
    """Return the facts about a checkpoint that do not change when its run is renamed."""
    return info.step, info.sequence, info.created, info.content


def _replaced_entry(candidate: Candidate, newest: Candidate, *, is_here: bool) -> PlanEntry:
    """Return the plan entry of a checkpoint whose step has a newer one, or whose run was renamed."""
    kept = [f"it has the tag {tag}" for tag in candidate.tags]
    kept += [f"it is pinned: {pin}" for pin in candidate.pins]
    kept += [candidate.wanted_by] if candidate.wanted_by else []
    # In this case, this store lacks the newer checkpoint, for example because two trainings share a run by mistake.
    kept += ["this store has it as the newest of its step"] if is_here else []
    again = f"its step was saved again: it now names {newest.info.id}"
    if newest.info.run != candidate.info.run:
        again = f"its run was renamed: it is now {newest.info.name}"
    reasons = tuple(kept) or (again,)
    return PlanEntry(candidate.info, bool(kept), reasons, protected=bool(kept))


def remove_there(remote: Remote, places: Collection[Place]) -> tuple[list[Claim], dict[Place, str]]:
    """Delete checkpoints from a remote. Their blobs remain until a prune.

    Returns:
        The claims that protect some of the checkpoints, and the reasons why others could not be deleted.
    """
    failed: dict[Place, str] = {}

    def each(of: Iterable[Place], remove: Callable[[Place], object]) -> None:
        for place in of:
            try:
                remove(place)
            except OF_ALL:  # the remaining checkpoints could not be deleted either
                raise
            except RemoteError as error:
                failed[place] = error.message

    # The deletion mark is written first. A client that has the checkpoint then sees the mark and does not push the
    # checkpoint again. An eviction also detects the mark, because it checks for marks after it has written its claim.
    each(places, lambda place: remote.objects.send(place.dropped, b"{}"))
    claims = [claim for claim in claims_at(remote.objects) if claim.place in places] if places else []
    each({*places} - {claim.place for claim in claims} - failed.keys(), partial(remove_documents, remote.objects))
    return claims, failed
