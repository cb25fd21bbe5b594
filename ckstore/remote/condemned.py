"""Blobs of a remote on their way out, ``condemned.json``, and which name of a blob counts: docs/format/remote-v1.md.

A request to remove an object may arrive long after it was sent. So a name that a pruner has begun to remove is not
written again: the blob goes on under the next number, and a late removal hits nothing that counts.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ckstore.errors import RemoteError, RemoteUnavailable
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import fan_out, is_digest
from ckstore.model.document import check_created, check_version, parse_object, refuse
from ckstore.model.seal import read, to_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ckstore.remote.objects import Listed, Objects

KEY: Final = "condemned.json"
BATCH_NAMES = 1000
_FORMAT, _VERSION = "ckstore-remote-condemned", 1
_MAX_BYTES = 64 * 2**20
_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z")
_UUID = re.compile(r"[0-9a-f]{32}\Z")
# Clients change the object once in a push at most; a hundred losses in a row mean that something else is wrong.
_TRIES = 100
_PAUSE_S = 0.05


def numbered(digest: str, number: int) -> str:
    """Return the name of a blob with this number; 0: the digest itself."""
    return f"{digest}.{number}" if number else digest


def split(name: str) -> tuple[str, int] | None:
    """Return the digest and the number of a name of a blob; None if it is none."""
    digest, point, number = name.partition(".")
    if not is_digest(digest) or (point and _NUMBER.match(number) is None):
        return None
    return digest, int(number or 0)


def key_of(name: str) -> str:
    """Return the key of a name of a blob."""
    return f"blobs/{fan_out(name.partition('.')[0])}/{name}"


def name_in(key: str) -> str | None:
    """Return the name of the blob with this key; None if it is not the key of a blob."""
    name = key.rpartition("/")[2]
    return name if split(name) is not None and key == key_of(name) else None


def find(objects: Objects, digest: str) -> Listed | None:
    """Return the object that holds a blob; None if the remote lacks it. One request, where the name was never burnt."""
    found = objects.head(key_of(digest))
    if found is not None:
        return found
    others = [(parts[1], one) for one in objects.list(f"{key_of(digest)}.") if (parts := split(_name(one.key)))]
    return max(others, key=lambda other: other[0])[1] if others else None


def _name(key: str) -> str:
    return key.rpartition("/")[2]


class Batch(NamedTuple):
    """Names that one pruner removes.

    Attributes:
        names: At most `BATCH_NAMES`.
        since: When it began, by the server's clock.
    """

    names: tuple[str, ...]
    since: str


@dataclass(frozen=True, slots=True)
class Condemned:
    """What ``condemned.json`` says.

    Attributes:
        burnt: Digest -> the least number that a writer may use.
        condemned: Name -> since when nothing names it.
        deleting: Uuid of a batch -> the batch.
    """

    burnt: Mapping[str, int] = field(default_factory=dict)
    condemned: Mapping[str, str] = field(default_factory=dict)
    deleting: Mapping[str, Batch] = field(default_factory=dict)

    def current(self, digest: str) -> str:
        """Return the name of a blob that counts."""
        return numbered(digest, self.burnt.get(digest, 0))

    def claimed(self, digests: Iterable[str]) -> Condemned:
        """Return what it has to say before a push relies on these blobs; itself, if it says it already."""
        names = {self.current(digest) for digest in digests}
        going = {name for batch in self.deleting.values() for name in batch.names}
        if not names & going and not names & self.condemned.keys():
            return self
        kept = {name: since for name, since in self.condemned.items() if name not in names}
        return Condemned(self.burnt, kept, self.deleting).with_burnt(names & going)

    def with_burnt(self, names: Iterable[str]) -> Condemned:
        """Return it after names were burnt; they stay in their batches, which their pruners take out."""
        burnt = dict(self.burnt)
        for name in names:
            parts = split(name)
            if parts is not None:
                digest, number = parts
                burnt[digest] = max(burnt.get(digest, 0), number + 1)
        return Condemned(burnt, self.condemned, self.deleting)

    def without_batch(self, uuid: str) -> Condemned:
        """Return it without one batch."""
        return Condemned(
            self.burnt, self.condemned, {one: batch for one, batch in self.deleting.items() if one != uuid}
        )

    def render(self) -> bytes:
        """Return the content of the object, without its digest."""
        return canonical_json(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "burnt": dict(self.burnt),
                "condemned": dict(self.condemned),
                "deleting": {
                    uuid: {"names": list(batch.names), "since": batch.since} for uuid, batch in self.deleting.items()
                },
            }
        )


def parse(data: bytes, where: str) -> Condemned:
    """Return what ``condemned.json`` says; every name and time is checked in form."""
    members = parse_object(data, where=where)
    if members.get("format") != _FORMAT:
        refuse(where, "format", repr(_FORMAT), members.get("format"))
    check_version(members.get("version"), _VERSION, where)
    burnt, condemned, deleting = (members.get(name) for name in ("burnt", "condemned", "deleting"))
    for name, value in (("burnt", burnt), ("condemned", condemned), ("deleting", deleting)):
        if not isinstance(value, dict):
            refuse(where, name, "an object", value)
    for digest, number in (burnt or {}).items():
        if not is_digest(digest) or isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 10**9:
            refuse(where, "burnt", "digests with numbers from 1", {digest: number})
    for name, since in (condemned or {}).items():
        _check_name(name, where)
        check_created(since, where)
    batches = {uuid: _batch(uuid, one, where) for uuid, one in (deleting or {}).items()}
    return Condemned(burnt or {}, condemned or {}, batches)


def _batch(uuid: str, value: Any, where: str) -> Batch:
    names = value.get("names") if isinstance(value, dict) else None
    if _UUID.match(uuid) is None or not isinstance(names, list) or len(names) > BATCH_NAMES:
        refuse(where, "deleting", f"batches of at most {BATCH_NAMES} names", value)
    for name in names:
        _check_name(name, where)
    check_created(value.get("since"), where)
    return Batch(tuple(names), value["since"])


def _check_name(name: object, where: str) -> None:
    if not isinstance(name, str) or split(name) is None:
        refuse(where, "a name", "a digest, or a digest, a point and a number", name)


def read_condemned(objects: Objects) -> tuple[Condemned, Listed | None]:
    """Return what the remote says, and the version that says it; None: there is no such object.

    Raises:
        CkstoreError: It cannot be read; neither a push nor a pruner may go on.
    """
    for _ in range(_TRIES):
        version = objects.head(KEY)
        if version is None:
            return Condemned(), None
        data = objects.get(KEY, _MAX_BYTES)
        # The bytes and the version come by two requests: only an object that stood still between them counts.
        if data is not None and objects.head(KEY) == version:
            return read(data, parse, KEY), version
        time.sleep(_PAUSE_S)
    raise RemoteUnavailable(f"{KEY} changes faster than it can be read", hint="try again later")


def write_condemned(objects: Objects, new: Condemned, version: Listed | None) -> bool:
    """Write it over the version that was read, or where there was none; False: another client was faster."""
    data = to_write(new, parse, most_bytes=_MAX_BYTES, where=KEY)
    return objects.create(KEY, data) if version is None else objects.update(KEY, data, version) is not None


def claim(objects: Objects, digests: Iterable[str], *, cas: bool) -> dict[str, str]:
    """Return the name of each blob that a push may rely on or write, after taking them from what is condemned.

    The intent that names these digests must have been written before.

    Raises:
        RemoteError: The service has no compare-and-swap, and yet they are condemned.
    """
    wanted = tuple(digests)
    for _ in range(_TRIES):
        found, version = read_condemned(objects)
        new = found.claimed(wanted)
        if new is found:
            return {digest: found.current(digest) for digest in wanted}
        if not cas:
            msg = f"{KEY} names blobs that this push needs, and the service does not compare before it writes"
            raise RemoteError(msg, hint="let the client that pruned finish it, or probe the remote again")
        if write_condemned(objects, new, version):
            return {digest: new.current(digest) for digest in wanted}
        time.sleep(_PAUSE_S)
    raise RemoteUnavailable(f"{KEY} was changed by other clients {_TRIES} times in a row", hint="try again later")
