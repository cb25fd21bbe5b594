"""``condemned.json``: blobs that are marked for deletion, and the current name of each blob.

Source: docs/format/remote-v1.md.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ckstore.errors import RemoteUnavailable
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import check_created, parse_document, refuse
from ckstore.model.seal import to_write
from ckstore.remote import keys
from ckstore.remote.keys import BlobName
from ckstore.remote.objects import Objects
from ckstore.remote.small_objects import read_document

_FORMAT = "ckstore-remote-condemned"
_VERSION = 1
MAX_BYTES = 64 * 2**20
BATCH_NAMES = 20_000
# The maximum numbers of names that pruners enter. These limits keep the object below `MAX_BYTES` even with the longest
# names, and limit the marked names that a push reads to 13 MiB.
MOST_CONDEMNED = 131_072
MOST_BURNT = 500_000
_UUID = re.compile(r"[0-9a-f]{32}\Z")
# The number of attempts to change the object. An attempt fails if another client changes the object meanwhile. Twenty
# failures in a row are not a coincidence.
TRIES = 20
PAUSE_S = 0.05


class Batch(NamedTuple):
    """Names of blobs that one pruner deletes."""

    names: tuple[str, ...]  # at most `BATCH_NAMES`
    since: str  # when the deletion began, according to the server's clock


@dataclass(slots=True)
class CondemnedNames:
    """The content of ``condemned.json``."""

    condemned: dict[str, str] = field(default_factory=dict)  # name of a blob -> when it was marked
    deleting: dict[str, Batch] = field(default_factory=dict)  # uuid -> a batch that a pruner deletes
    retired_names: dict[str, int] = field(
        default_factory=dict
    )  # digest -> number of the first name that may be written
    # Each write gets a random value. Many services derive the tag of a version from its bytes. If two versions had
    # equal bytes, a suspended client could mistake a later version for the one that it read.
    change: str = field(default="", compare=False)

    def name(self, digest: str) -> BlobName:
        """Return the current name of a blob."""
        return BlobName(digest, self.retired_names.get(digest, 0))

    def unmark_needed(self, digests: Iterable[str]) -> bool:
        """Unmark the current names of needed blobs, and retire those that a pruner is deleting.

        Returns:
            Whether this changed the object.
        """
        going = self.going()
        changed = False
        for digest in digests:
            name = self.name(digest)
            if str(name) in going:
                self.retired_names[digest] = name.number + 1
                changed = True
            changed = self.condemned.pop(str(name), None) is not None or changed
        return changed

    def going(self) -> set[str]:
        """Return all names that a pruner may be deleting now."""
        return {name for batch in self.deleting.values() for name in batch.names}

    def burn(self, names: Iterable[str]) -> None:
        """Retire names. Their blobs then get the next numbers, and a late deletion cannot affect the new names."""
        for name in names:
            found = keys.blob_name(name)
            if found is not None:
                self.retired_names[found.digest] = max(self.retired_names.get(found.digest, 0), found.number + 1)

    def render(self) -> bytes:
        """Return the content of the object, without its seal."""
        deleting = {one: {"names": list(batch.names), "since": batch.since} for one, batch in self.deleting.items()}
        members = {
            "condemned": self.condemned,
            "deleting": deleting,
            "burnt": self.retired_names,
            "change": self.change,
        }
        return canonical_json({**members, "format": _FORMAT, "version": _VERSION}) + b"\n"


def _parse(data: bytes, where: str) -> CondemnedNames:
    members = parse_document(data, _FORMAT, _VERSION, where)
    condemned, deleting, burnt = (members.get(name) for name in ("condemned", "deleting", "burnt"))
    if not isinstance(condemned, dict) or not all(_is_name(name) for name in condemned):
        refuse(where, "condemned", "names with times", condemned)
    for since in condemned.values():
        check_created(since, where)
    if not isinstance(deleting, dict):
        refuse(where, "deleting", "batches of names", deleting)
    if not isinstance(burnt, dict) or not all(
        is_digest(digest) and isinstance(number, int) and not isinstance(number, bool) and 0 < number < 10**9
        for digest, number in burnt.items()
    ):
        refuse(where, "burnt", "digests with numbers", burnt)
    batches = {batch: _batch(batch, one, where) for batch, one in deleting.items()}
    return CondemnedNames(condemned, batches, burnt, str(members.get("change", "")))


def _batch(batch: str, value: Any, where: str) -> Batch:
    names = value.get("names") if isinstance(value, dict) else None
    if (
        not _UUID.match(batch)
        or not isinstance(names, list)
        or len(names) > BATCH_NAMES
        or not all(map(_is_name, names))
    ):
        refuse(where, "deleting", f"batches of at most {BATCH_NAMES} names", value)
    return Batch(tuple(names), check_created(value.get("since"), where))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and keys.blob_name(name) is not None


def read_condemned(objects: Objects) -> CondemnedNames:
    """Return the marked and retired names of a remote. If the object cannot be read, no push can run."""
    data = objects.get(keys.CONDEMNED, MAX_BYTES)
    return CondemnedNames() if data is None else read_document(data, _parse, keys.CONDEMNED)


def unmark_needed(objects: Objects, digests: Iterable[str], *, cas: bool) -> CondemnedNames:
    """Keep pruners from deleting these blobs. An intent or a claim that names them must already be written.

    Returns:
        The content of the object, with the current names of the blobs.

    Raises:
        RemoteUnavailable: Other clients changed the object at every attempt.
    """
    digests = list(digests)
    for _ in range(TRIES):
        found, version = read_versioned(objects)
        # Without compare-and-swap, no pruner runs at the same time as pushes, so no blob can be marked.
        if not cas or version is None or not found.unmark_needed(digests):
            return found
        if swap(objects, found, version) is not None:
            return found
        time.sleep(PAUSE_S)
    msg = f"{keys.CONDEMNED} was changed by other clients {TRIES} times while this push was reading it"
    raise RemoteUnavailable(msg, hint="push again")


def read_versioned(objects: Objects) -> tuple[CondemnedNames, str | None]:
    """Return the content of the object and its version for `swap`, or an empty content and None if it is missing."""
    # The version is read before the content. If another client writes between the two reads, the swap fails.
    version = objects.head(keys.CONDEMNED)
    return read_condemned(objects), None if version is None else version.tag


def swap(objects: Objects, new: CondemnedNames, version: str | None) -> str | None:
    """Replace `version` of the object. Without a version, create the object.

    Returns:
        The new version, or None if another client has changed the object. After a creation, the version is unknown and
        the result is "".
    """
    new.change = uuid.uuid4().hex
    data = to_write(new, _parse, most_bytes=MAX_BYTES, where=keys.CONDEMNED)
    if version is None:
        return "" if objects.create(keys.CONDEMNED, data) else None
    return objects.update(keys.CONDEMNED, data, version)
