"""The remotes that have the blobs of a checkpoint (``elsewhere.json``), without I/O. Source: docs/format/v1.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json
from ckstore.model.document import check_created, parse_document, refuse

_FORMAT = "ckstore-elsewhere"
_VERSION = 1
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_CLAIM = re.compile(r"(?:[0-9a-f]{32})?\Z")
_NAME_CHARS = 4096


@dataclass(frozen=True, slots=True)
class RemoteHolder:
    """A remote that has every blob of a checkpoint."""

    uuid: str  # identifies the remote, because another remote may have the same name now
    name: str  # name of the remote in the store, or the directory of the store from which this store was cloned
    claim: str = ""  # uuid of the claim that keeps the checkpoint on the remote; empty without a claim, as in a clone


@dataclass(frozen=True, slots=True)
class RemoteOnly:
    """The remotes with the blobs that are missing in the directory of a checkpoint."""

    since: str  # time of the eviction in UTC, in the format of a manifest
    remotes: tuple[RemoteHolder, ...]  # each has all of the blobs

    def render(self) -> bytes:
        """Return the content of the file."""
        remotes = [
            {"uuid": one.uuid, "name": one.name, **({"claim": one.claim} if one.claim else {})} for one in self.remotes
        ]
        return canonical_json({"format": _FORMAT, "version": _VERSION, "since": self.since, "remotes": remotes}) + b"\n"


def parse_remote_only(data: bytes, where: str) -> RemoteOnly:
    """Parse ``elsewhere.json``."""
    members = parse_document(data, _FORMAT, _VERSION, where)
    remotes = members.get("remotes")
    if not isinstance(remotes, list) or not remotes:
        refuse(where, "remotes", "an array that is not empty", remotes)
    return RemoteOnly(check_created(members.get("since"), where), tuple(_holder(one, where) for one in remotes))


def _holder(value: Any, where: str) -> RemoteHolder:
    if not isinstance(value, dict):
        refuse(where, "remotes", "objects with uuid and name", value)
    uuid, name = value.get("uuid"), value.get("name")
    if not isinstance(uuid, str) or _UUID.match(uuid) is None:
        refuse(where, "uuid", "a uuid", uuid)
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS or "\0" in name:
        raise BadInput(f"{where}: the name of a remote has 1 to {_NAME_CHARS} characters")
    claim = value.get("claim", "")
    if not isinstance(claim, str) or _CLAIM.match(claim) is None:
        refuse(where, "claim", "32 hexadecimal digits", claim)
    return RemoteHolder(uuid, name, claim)
