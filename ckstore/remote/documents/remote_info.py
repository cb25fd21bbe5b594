"""``remote.json``: the description of a remote. Source: docs/format/remote-v1.md."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from ckstore.errors import BadInput, NoSuchRemote, RemoteError
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import algorithm_named
from ckstore.model.document import check_created, check_requires, parse_document
from ckstore.model.seal import seal
from ckstore.model.settings.settings import StoreSettings, check_chunk_bytes, check_uuid
from ckstore.remote import keys
from ckstore.remote.objects import Objects, Remote
from ckstore.remote.small_objects import read_document

_FORMAT = "ckstore-remote"
_VERSION = 1
_MAX_BYTES = 2**20
_SETTLING_S = 2.0
"""The pause between two reads. A client that finds no remote creates one within a shorter time."""
_READINGS = 10


@dataclass(frozen=True, slots=True)
class RemoteInfo:
    """The description of a remote: its identity, hash and chunk size."""

    uuid: str  # uuid of the remote
    store: str  # uuid of the store that created it
    # The hash and the chunk size of that store.
    hash: str
    chunk_bytes: int
    created: str  # UTC, as in a manifest

    @classmethod
    def of(cls, settings: StoreSettings, created: str, former: str = "") -> RemoteInfo:
        """Return the description of a remote that a store creates. A remote that lost it gets its former uuid again."""
        return cls(former or str(uuid.uuid4()), settings.uuid, settings.hash, settings.chunk_bytes, created)

    def render(self) -> bytes:
        """Return the content of the object."""
        members = {
            "format": _FORMAT,
            "version": _VERSION,
            "uuid": self.uuid,
            "store": self.store,
            "hash": self.hash,
            "chunk_bytes": self.chunk_bytes,
            "created": self.created,
        }
        return seal(canonical_json(members) + b"\n")


def _parse(data: bytes, where: str) -> RemoteInfo:
    members = parse_document(data, _FORMAT, _VERSION, where)
    check_requires(members.get("requires", []), (), where)
    wanted = ("uuid", "store", "hash", "chunk_bytes", "created")
    for name in ("uuid", "store"):
        check_uuid(members.get(name))  # stores that use the remote keep its uuid in their settings
    algorithm_named(members.get("hash"))
    check_chunk_bytes(members.get("chunk_bytes"))
    check_created(members.get("created"), where)
    return RemoteInfo(**{name: members[name] for name in wanted})


def read_info(objects: Objects, name: str) -> RemoteInfo:
    """Return the description of a remote.

    Raises:
        NoSuchRemote: The description is missing.
        RemoteError: The description cannot be read.
    """
    data = objects.get(keys.INFO, _MAX_BYTES)
    if data is None:
        msg = f"there is no remote at {name}: {keys.INFO} is missing"
        hint = (
            f"ckstore remote add {name} URL, in a store that used it, creates it again; then ckstore verify lists "
            "the checkpoints that are lost"
        )
        raise NoSuchRemote(msg, hint=hint)
    try:
        return read_document(data, _parse, f"{keys.INFO} of {name}")
    except RemoteError as error:
        restored = f"delete {keys.INFO} there, and restore it in a store that used it: ckstore remote add {name} URL"
        error.hint = f"try again; if the error persists, {restored}"
        raise


def agreed_info(objects: Objects, name: str) -> RemoteInfo:
    """Return the description of a remote after two successive reads agree.

    This is needed on services without conditional writes, where two clients can create the same remote.
    """
    found = read_info(objects, name)
    for _ in range(_READINGS):
        # The last write wins, and the client of an earlier write notices this only after a while.
        time.sleep(_SETTLING_S)
        before, found = found, read_info(objects, name)
        if found == before:
            return found
    msg = f"{name} could not be added: other clients kept changing its {keys.INFO} during {_READINGS} readings"
    raise RemoteError(msg, hint="add it from one store first, then from the others")


def check_uuid_is(found: str, wanted: str, name: str) -> None:
    """Raise `NoSuchRemote` if the target now has another remote than the one that was added.

    The store's records of the added remote do not apply to another remote.
    """
    if wanted and found != wanted:
        msg = f"another remote is now at {name}: its uuid is {found}, expected {wanted}"
        raise NoSuchRemote(msg, hint=f"to use the other one: ckstore remote rm {name}, then add it again")


def check_takes(remote: Remote, settings: StoreSettings) -> RemoteInfo:
    """Return the description of a remote that a store is about to push to.

    Raises:
        NoSuchRemote: Another remote is now at the target.
        BadInput: The remote uses another hash.
    """
    info = read_info(remote.objects, remote.name)
    check_uuid_is(info.uuid, remote.uuid, remote.name)
    check_hash(info, settings, remote.name)
    return info


def check_hash(info: RemoteInfo, settings: StoreSettings, name: str) -> None:
    """Raise `BadInput` if a store and a remote use different hash algorithms."""
    if info.hash != settings.hash:
        msg = f"{name} has blobs that are named by {info.hash}, and this store names them by {settings.hash}"
        raise BadInput(
            msg, hint="a store and its remote must use the same hash: create another remote, or another store"
        )
