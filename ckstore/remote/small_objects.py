"""Small objects of a remote that may change: tags, pins and annotations. Source: docs/format/remote-v1.md."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ckstore.errors import BadInput, CkstoreError, DamagedBlob, RemoteError
from ckstore.model.canonical import canonical_json
from ckstore.model.checkpoint.pins import Pin, parse_pin
from ckstore.model.digest import is_digest
from ckstore.model.document import parse_document, refuse
from ckstore.model.names import check_run, check_step
from ckstore.model.seal import read, seal
from ckstore.remote import keys
from ckstore.remote.keys import Place
from ckstore.remote.objects import Objects, Remote

T = TypeVar("T")
_FORMAT = "ckstore-remote-tag"
_VERSION = 1
TAG_MAX_BYTES = 2**20
# The number of attempts to write. An attempt fails if another client writes the same small object at the same moment.
_TRIES = 10
_PAUSE_S = 0.05


def read_document(data: bytes, parse: Callable[[bytes, str], T], where: str) -> T:
    """Parse a small object. If it is invalid, raise `RemoteError`, since the caller's arguments are not at fault."""
    try:
        return read(data, parse, where)
    except (BadInput, DamagedBlob) as error:
        failure = RemoteError(
            error.message, hint="try again; if the error persists, check who else writes to the remote"
        )
    raise failure


def read_pin(data: bytes, name: str, source: str) -> Pin:
    """Parse a pin of a source."""
    return read(data, partial(parse_pin, name), f"the pin {name} at {source}")


def tag_bytes(place: Place) -> bytes:
    """Return the content of the object of a tag."""
    return seal(canonical_json({"format": _FORMAT, "version": _VERSION, **place._asdict()}) + b"\n")


def _parse_tag(data: bytes, where: str) -> Place:
    members = parse_document(data, _FORMAT, _VERSION, where)
    try:
        run, step = check_run(members.get("run")), check_step(members.get("step"))
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}") from error
    if not is_digest(members.get("id")):
        refuse(where, "id", "an id", members.get("id"))
    return Place(run, step, members["id"])


def read_tags(objects: Objects, *, strict: bool = False) -> dict[str, Place]:
    """Return the target of each tag. Unreadable tags are left out, or raise an error if `strict` is True."""
    found = {name: listed.key for listed in objects.list(keys.TAGS) if (name := keys.tag_in(listed.key))}
    tags: dict[str, Place] = {}
    for name, key in found.items():
        data = objects.get(key, TAG_MAX_BYTES)
        try:
            if data is not None:
                tags[name] = read(data, _parse_tag, key)
        except CkstoreError:  # an unreadable tag must not hide the other tags
            if strict:
                raise
    return tags


def change(remote: Remote, key: str, make: Callable[[bytes | None], bytes | None], *, most_bytes: int) -> str | None:
    """Replace the content of a small object with `make(content)`, and return the tag of the resulting version.

    If the object does not exist, `make` receives None. If `make` returns None, the object is not changed. `make` may be
    called several times. The object is written by compare-and-swap if the service supports that.

    Raises:
        RemoteError: Other clients changed the object at every attempt.
    """
    objects = remote.objects
    for _ in range(_TRIES):
        # The version is read before the content. If the object changes in between, the swap fails.
        found = objects.head(key)
        version = None if found is None else found.tag
        present = None if version is None else objects.get(key, most_bytes)
        wanted = make(present)
        if wanted is None or wanted == present:
            return version
        if not remote.cas:
            return objects.send(key, wanted)
        if version is not None:
            written = objects.update(key, wanted, version)
            if written is not None:
                return written
        elif objects.create(key, wanted) and (made := objects.head(key)) is not None:
            return made.tag
        time.sleep(_PAUSE_S)
    raise RemoteError(f"{key} at {remote.name} was changed by other clients {_TRIES} times", hint="push again")
