"""Probes the abilities of a service with small objects under ``probe/``, instead of relying on its documentation."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from datetime import datetime

from ckstore.errors import RemoteDenied, RemoteError
from ckstore.remote import keys
from ckstore.remote.objects import ObjectEntry, Objects
from ckstore.remote.service.abilities import Abilities, Cas
from ckstore.remote.service.remote_entries import open_objects
from ckstore.remote.service.target import Target
from ckstore.remote.service.wrong_body import refuses_wrong_body

# No service gives an object of one byte this tag.
_WRONG_TAG = '"00000000000000000000000000000001"'
_RACERS, _LAPS = 3, 4
_MOST_TRIES = 60
_BYTES = bytes(range(64))


def probe(target: Target) -> tuple[Abilities, datetime | None]:
    """Probe the service of a target. Return its abilities and its time, or None as the time if it is not writable."""
    folder = f"{keys.PROBE}{uuid.uuid4().hex}"
    objects = open_objects(target)
    try:
        written = objects.put(f"{folder}-list", b"1")
    except RemoteDenied:
        next(iter(objects.list("remote.json")), None)  # raises without permission to list
        return Abilities(writes=False, create=False, cas="no", lists_writes=False), None
    try:
        if target.kind == "directory" and objects.head(f"{folder}-LIST") is not None:
            msg = f"{target} does not distinguish A from a, as runs and tags do"
            raise RemoteError(msg, hint="choose a directory on another filesystem")
        found = Abilities(
            create=_creates_once(objects, f"{folder}-create"),
            cas=_cas(target, f"{folder}-cas"),
            ranges=_reads_ranges(objects, f"{folder}-range"),
            lists_writes=_lists_writes(objects, f"{folder}-list"),
            checks_bodies=refuses_wrong_body(target, f"{folder}-body"),
        )
    finally:
        # A failure here must not hide an earlier error. Leftovers are harmless, and a pruner deletes them.
        with suppress(RemoteError):
            objects.delete([f"{folder}-{what}" for what in ("create", "cas", "race", "range", "list", "body")])
        objects.close()
    return found, written.modified


def _creates_once(objects: Objects, key: str) -> bool:
    try:
        return objects.create(key, b"first") and not objects.create(key, b"other") and objects.get(key, 10) == b"first"
    except RemoteError:
        return False  # StorageGRID answers with status 501


def _cas(target: Target, key: str) -> Cas:
    """Return how the service supports compare-and-swap."""
    for way in ("yes", "unquoted"):
        objects = open_objects(target, Abilities(cas=way))
        try:
            if _updates_one_version(objects, key) and _loses_no_update(objects, key.replace("-cas", "-race")):
                return way
        except RemoteError:
            continue  # the service does not support conditions
        finally:
            objects.close()
    return "no"


def _updates_one_version(objects: Objects, key: str) -> bool:
    first = objects.send(key, b"1")
    if objects.update(key, b"2", _WRONG_TAG) is not None or objects.get(key, 10) != b"1":
        return False
    if objects.update(key, b"3", first) is None or objects.get(key, 10) != b"3":
        return False
    return objects.update(key, b"4", first) is None and objects.get(key, 10) == b"3"


def _loses_no_update(objects: Objects, key: str) -> bool:
    """Whether no acknowledged update of racing clients is lost.

    A service that compares and writes in two separate steps may lose one.
    """
    objects.send(key, b"0")
    done: list[int] = []
    failures: list[RemoteError] = []

    def count(racer: int) -> None:
        try:
            done.append(sum(_counted(objects, key, racer) for _ in range(_LAPS)))
        except RemoteError as error:
            failures.append(error)

    threads = [threading.Thread(target=count, args=(racer,), daemon=True) for racer in range(_RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return int((objects.get(key, 100) or b"0").split()[0]) == sum(done)


def _counted(objects: Objects, key: str, racer: int) -> bool:
    """Add one to a counter. Return False if other clients were faster every time."""
    for _ in range(_MOST_TRIES):
        version: ObjectEntry | None = objects.head(key)
        value = int((objects.get(key, 100) or b"0").split()[0])
        # The content includes the racer's number, because equal bytes of another racer would count as the own write.
        if version is not None and objects.update(key, b"%d %d" % (value + 1, racer), version.tag) is not None:
            return True
    return False


def _reads_ranges(objects: Objects, key: str) -> bool:
    objects.send(key, _BYTES)
    into = bytearray(10)
    try:
        return objects.read_into(key, 20, memoryview(into)) and bytes(into) == _BYTES[20:30]
    except RemoteError:
        return False


def _lists_writes(objects: Objects, key: str) -> bool:
    if key not in [one.key for one in objects.list(keys.PROBE)]:
        return False
    objects.delete([key])
    return key not in [one.key for one in objects.list(keys.PROBE)]
