"""Resolves refs to checkpoints of a source, with the rules for refs in a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ckstore.errors import AmbiguousRef, BadInput, CkstoreError, NoSuchRef, RemoteError
from ckstore.model.checkpoint.refs import VERIFIED_KINDS, Ref, parse_ref, resolve, why_skipped
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.parse import parse_facts
from ckstore.ops.call_threads import for_each
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.keys import Place
from ckstore.remote.metadata_sync import named_at
from ckstore.remote.objects import THREADS
from ckstore.remote.source import RemovedCheckpoint, Source


def find_on_remote(source: Source, text: str, *, run: str | None, hash_prefix: str) -> Place:
    """Return the checkpoint that a ref names at a source.

    `latest-valid` names the same checkpoint as `latest`. This function reads no blobs, and the caller verifies every
    blob that it reads.
    """
    ref = parse_ref(text)
    tags = source.tags() if ref.kind == "tag" else {}
    if ref.kind == "tag" and ref.value in tags:
        return _place_of_tag(source, ref, tags[ref.value])
    if ref.kind not in ("tag", "id"):  # a tag or an id names one checkpoint of the whole remote, as in a store
        ref = replace(ref, run=ref.run or run)
    if ref.kind in ("latest", "latest-valid"):
        ref = Ref(ref.run, "latest", "latest")
        return _newest(source, source.places("" if ref.run is None else f"{ref.run}/"), ref, hash_prefix)
    if ref.kind in VERIFIED_KINDS:  # a kind such as `latest-healthy` skips checkpoints by facts in their manifests
        found = facts_of(source, source.places("" if ref.run is None else f"{ref.run}/"), hash_prefix)
        reasons = {place: why_skipped(ref.kind, info) for place, info in found.items()}
        chosen = [place for place, reason in reasons.items() if not reason]
        if reasons and not chosen:
            place, reason = next(iter(reasons.items()))
            message = f"{ref}: every checkpoint at {source.name} is skipped, such as {place.name} ({reason})"
            raise NoSuchRef(message, hint="latest names the newest one")
        return _newest(source, chosen, ref, hash_prefix)
    if ref.kind == "best":  # reading the metrics in all manifests is slow, but users rarely request this kind
        there = facts_of(source, source.places("" if ref.run is None else f"{ref.run}/"), hash_prefix)
        best = _resolved(source, ref, [*there.values()])
        return next(place for place in there if place.id == best.id)
    if ref.kind not in ("step", "tag", "id"):
        raise BadInput(f"{ref}: a ref of the kind {ref.kind} cannot be resolved at a remote", hint="write RUN@STEP")
    places = source.places()
    named = _resolved(source, ref, [_stub(place) for place in places], tags)
    same = [place for place in places if place.run_step == named.key.run_step]
    if ref.kind == "id" or len(same) == 1:
        return next(place for place in same if place.id == named.id)
    return _newest(source, same, ref, hash_prefix)


def _stub(place: Place) -> CheckpointInfo:
    """Return a checkpoint with only the facts that a listing has.

    The step is used as the sequence number, because the commit order affects only the suggestions in errors.
    """
    return CheckpointInfo(place.id, place.run, place.step, place.step, "", 0, 0, 0, 0, "")


def _resolved(
    source: Source, ref: Ref, found: Sequence[CheckpointInfo], tags: Mapping[str, Place] = MappingProxyType({})
) -> CheckpointInfo:
    """Return the checkpoint that a ref names. Errors name the source, which may lack checkpoints of the store."""
    if not any(ref.run in (None, info.run) for info in found):
        raise _none_at(source, ref)
    try:
        return resolve(ref, found, {name: _stub(place).key.any_generation for name, place in tags.items()})
    except NoSuchRef as error:
        raise NoSuchRef(f"{source.name}: {error.message}", hint=error.hint, command_hint=error.command_hint) from error


def _none_at(source: Source, ref: Ref) -> NoSuchRef:
    of_run = "" if ref.run is None else f" of the run {ref.run!r}"
    return NoSuchRef(f"{ref}: {source.name} has no checkpoint{of_run}")


def _place_of_tag(source: Source, ref: Ref, place: Place) -> Place:
    if ref.run not in (None, place.run):
        msg = f"{ref}: the tag {ref.value!r} names {place.name}, which is in another run"
        raise NoSuchRef(msg, hint=f"write {ref.value}")
    if place not in source.places(f"{place.run}/{place.step}/{place.id}/"):
        msg = f"{ref}: the tag {ref.value!r} names {place.name} with id {place.id}, which is not at {source.name}"
        raise NoSuchRef(msg)
    return place


def _newest(source: Source, places: Sequence[Place], ref: Ref, hash_prefix: str) -> Place:
    """Return the newest of some checkpoints in commit order. That order is read from their manifests."""
    runs = sorted({place.run for place in places})
    if ref.run is None and len(runs) > 1:
        msg = f"{ref}: {source.name} has {len(runs)} runs: {', '.join(runs[:5])}"
        raise AmbiguousRef(msg, hint=f"write {runs[0]}@{ref.value}")
    if not places:
        raise _none_at(source, ref)
    if len(places) == 1:
        return places[0]
    found = facts_of(source, places, hash_prefix)
    if not found:
        raise NoSuchRef(f"{ref}: the checkpoints at {source.name} were removed meanwhile")
    return max(found, key=lambda place: found[place].order)


def newest_of_steps(source: Source, places: Sequence[Place], hash_prefix: str) -> list[Place]:
    """Return the newest checkpoint of each step, followed by older ones that a tag or a pin names."""
    count = Counter(place.run_step for place in places)
    several = [place for place in places if count[place.run_step] > 1]
    facts = facts_of(source, several, hash_prefix)  # the order is in the manifests
    newest = {place.run_step: place for place in sorted(facts, key=lambda place: facts[place].order)}
    older = [place for place in several if newest.get(place.run_step, place) != place]
    named = named_at(source) if older else set()
    return [*(place for place in places if place not in {*older}), *(place for place in older if place.id in named)]


def facts_of(source: Source, places: Iterable[Place], hash_prefix: str) -> dict[Place, CheckpointInfo]:
    """Return the facts from the manifests of checkpoints. Checkpoints deleted meanwhile are left out."""
    found: dict[Place, CheckpointInfo] = {}

    def look(place: Place) -> None:
        data = source.manifest(place)
        if data is None:
            return
        where = f"the manifest of {place.name} at {source.name}"
        try:
            info = parse_facts(data, where=where, hash_prefix=hash_prefix, plain=lambda: source.plain(place))
        except RemovedCheckpoint:
            return
        except CkstoreError as error:
            raise RemoteError(error.message, hint=error.hint or source.mending(place)) from error
        if (info.run, info.step, info.id) != tuple(place):
            msg = f"{where} describes {info.name} with id {info.id}, expected id {place.id}"
            raise RemoteError(msg)
        found[place] = info

    for_each(look, places, threads=THREADS, stopping=MemoryBudget().ending(source.close))
    return found
