"""Reads, voids and finishes the intents of other clients, for a pruner."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import Any

from ckstore.errors import CkstoreError, RemoteError
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import parse_document, refuse
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.model.manifest.parse import parse_manifest
from ckstore.model.names import is_run
from ckstore.model.seal import MEMBER, seal
from ckstore.remote.keys import Place
from ckstore.remote.objects import ObjectEntry, Objects
from ckstore.remote.small_objects import read_document

_FORMAT, _VERSION = "ckstore-remote-intent", 1
_MAX_BYTES = 512 * 2**20
_KEY = re.compile(r"intents/[0-9a-f]{32}\.json\Z")
_STATES = ("uploading", "committing", "void")
_LIFE_S = (60, 86_400)


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """An intent that was read from the remote.

    Attributes:
        listed: The entry in the listing. The content is that of the listed version or of a later one.
        members: All members of the document, including unknown ones.
    """

    listed: ObjectEntry
    members: dict[str, Any]

    @property
    def state(self) -> str:
        """``uploading``, ``committing`` or ``void``."""
        return str(self.members["state"])

    @property
    def blobs(self) -> tuple[str, ...]:
        """The digests of the blobs that the push needs."""
        return tuple(self.members["blobs"])

    @property
    def places(self) -> tuple[tuple[Any, ...], ...]:
        """Run, step and id of each checkpoint, unchecked."""
        return tuple((one.get("run"), one.get("step"), one.get("id")) for one in self.members["checkpoints"])

    @property
    def life_s(self) -> float:
        """The seconds without a renewal after which the intent is stale."""
        return float(self.members["life_s"])

    def render(self) -> bytes:
        """Return the content of its object, which differs at each call."""
        return seal(canonical_json({**self.members, "change": uuid.uuid4().hex}))


def is_intent(key: str) -> bool:
    """Whether a key belongs to an intent."""
    return _KEY.match(key) is not None


def read_intent(objects: Objects, listed: ObjectEntry) -> IntentRecord | None:
    """Return an intent, or None if it no longer exists.

    Raises:
        CkstoreError: The intent cannot be read, so the blobs that the push needs are unknown.
    """
    data = objects.get(listed.key, _MAX_BYTES)
    if data is None:
        return None
    return replace(read_document(data, _parse, listed.key), listed=listed)


def _parse(data: bytes, where: str) -> IntentRecord:
    members = parse_document(data, _FORMAT, _VERSION, where)
    blobs, state, life_s = members.get("blobs"), members.get("state"), members.get("life_s")
    if not isinstance(blobs, list) or not all(is_digest(blob) for blob in blobs):
        refuse(where, "blobs", "digests", blobs)
    checkpoints = members.get("checkpoints")
    if not isinstance(checkpoints, list) or not all(isinstance(one, dict) for one in checkpoints):
        refuse(where, "checkpoints", "objects", checkpoints)
    if state not in _STATES:
        refuse(where, "state", " or ".join(_STATES), state)
    if isinstance(life_s, bool) or not isinstance(life_s, int | float) or not _LIFE_S[0] <= life_s <= _LIFE_S[1]:
        refuse(where, "life_s", f"seconds from {_LIFE_S[0]} to {_LIFE_S[1]}", life_s)
    members.pop(MEMBER, None)
    return IntentRecord(None, members)  # type: ignore[arg-type]  # the caller sets the listed version


def void(objects: Objects, record: IntentRecord) -> bool:
    """Void a stale intent if the remote still has the listed version. Return False if its push is alive."""
    gone = replace(record, members={**record.members, "state": "void"})
    return objects.update(record.listed.key, gone.render(), record.listed.tag) is not None


def finish(objects: Objects, record: IntentRecord, hash_prefix: str) -> bool:
    """Publish the missing manifests of a push that had sent all its blobs. Return whether any manifest was missing.

    Raises:
        RemoteError: A manifest in the intent does not belong to its checkpoint.
    """
    # All manifests are checked before the first is written, so that nothing of an intent with an error is applied.
    follow = [_pending_manifest(objects, one, record.listed.key, hash_prefix) for one in record.members["checkpoints"]]
    missing = [
        (place, data)
        for place, data in follow
        if objects.head(place.dropped) is None and objects.head(place.manifest) is None
    ]
    for place, data in missing:
        objects.send(place.manifest, data)
    objects.delete([record.listed.key])
    return bool(missing)


def _pending_manifest(objects: Objects, members: dict[str, Any], where: str, hash_prefix: str) -> tuple[Place, bytes]:
    """Return the location and the manifest of a checkpoint, from its entry in an intent."""
    run, step, manifest_id, manifest = (members.get(name) for name in ("run", "step", "id", "manifest"))
    if not isinstance(manifest, str) or not manifest.isascii() or not isinstance(run, str) or not is_run(run):
        raise RemoteError(f"{where} is being committed, but contains no valid manifest")
    data = manifest.encode("ascii")
    wanted = None
    if isinstance(step, int) and isinstance(manifest_id, str) and is_digest(manifest_id):
        wanted = Place(run, step, manifest_id)

    def plain() -> bytes:
        found = None if wanted is None else objects.get(wanted.plain, MANIFEST_MAX_BYTES)
        if found is None:
            raise RemoteError(f"{where} commits an encoded checkpoint, but its plain manifest is missing")
        return found

    try:
        info = CheckpointInfo.of(*parse_manifest(data, where=where, hash_prefix=hash_prefix, plain=plain))
    except CkstoreError as error:
        raise RemoteError(error.message, hint=error.hint) from error
    place = Place(info.run, info.step, info.id)
    if place != wanted:
        raise RemoteError(f"{where} names {run}@{step}, but its manifest names {info.name}")
    return place, data
