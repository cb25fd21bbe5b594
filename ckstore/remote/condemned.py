"""``condemned.json``: blobs on their way out, and which name of each counts. Source: docs/format/remote-v1.md."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckstore.errors import RemoteError
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import check_version, parse_object, refuse
from ckstore.model.seal import read, seal
from ckstore.remote import keys
from ckstore.remote.keys import BlobName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckstore.remote.objects import Listed, Objects

_FORMAT = "ckstore-remote-condemned"
_VERSION = 1
MAX_BYTES = 64 * 2**20
# Each try is lost to another client's change of the object; twenty in a row are no accident.
_TRIES = 20
_PAUSE_S = 0.05


@dataclass(slots=True)
class Condemned:
    """What the object says.

    Attributes:
        condemned: Name of a blob -> since when nothing named it.
        deleting: Batches that a pruner removes, as they were read.
        burnt: Digest -> number of the first name that may be written.
    """

    condemned: dict[str, str] = field(default_factory=dict)
    deleting: dict[str, Any] = field(default_factory=dict)
    burnt: dict[str, int] = field(default_factory=dict)

    def name(self, digest: str) -> BlobName:
        """Return the current name of a blob."""
        return BlobName(digest, self.burnt.get(digest, 0))

    def spare(self, digests: Iterable[str]) -> bool:
        """Take the current names of blobs that are needed out of it, burn those that are being removed.

        Returns:
            Whether anything changed.
        """
        going = {name for batch in self.deleting.values() for name in batch["names"]}
        changed = False
        for digest in digests:
            name = self.name(digest)
            if str(name) in going:
                self.burnt[digest] = name.number + 1
                changed = True
            changed = self.condemned.pop(str(name), None) is not None or changed
        return changed

    def render(self) -> bytes:
        """Return the content of the object, without its digest."""
        members = {"condemned": self.condemned, "deleting": self.deleting, "burnt": self.burnt}
        return canonical_json({**members, "format": _FORMAT, "version": _VERSION}) + b"\n"


def _parse(data: bytes, where: str) -> Condemned:
    members = parse_object(data, where=where)
    if members.get("format") != _FORMAT:
        refuse(where, "format", repr(_FORMAT), members.get("format"))
    check_version(members.get("version"), _VERSION, where)
    condemned, deleting, burnt = (members.get(name) for name in ("condemned", "deleting", "burnt"))
    if not isinstance(condemned, dict) or not all(isinstance(when, str) for when in condemned.values()):
        refuse(where, "condemned", "names with times", condemned)
    if not isinstance(deleting, dict) or not all(_is_batch(batch) for batch in deleting.values()):
        refuse(where, "deleting", "batches of names", deleting)
    if not isinstance(burnt, dict) or not all(
        is_digest(digest) and isinstance(number, int) and not isinstance(number, bool) and number > 0
        for digest, number in burnt.items()
    ):
        refuse(where, "burnt", "digests with numbers", burnt)
    return Condemned(condemned, deleting, burnt)


def _is_batch(batch: Any) -> bool:
    names = batch.get("names") if isinstance(batch, dict) else None
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def read_condemned(objects: Objects) -> Condemned:
    """Return what the remote says; one that cannot be read stops every push.

    Raises:
        CkstoreError: It cannot be read, or is damaged.
    """
    data = objects.get(keys.CONDEMNED, MAX_BYTES)
    return Condemned() if data is None else read(data, _parse, keys.CONDEMNED)


def spare(objects: Objects, digests: Iterable[str], *, cas: bool) -> Condemned:
    """Keep a pruner from removing these blobs, whose intent is written; return which names of them count.

    Raises:
        RemoteError: Other clients changed the object again and again.
    """
    digests = list(digests)
    for _ in range(_TRIES):
        # The version before the content: if another client writes in between, the swap fails and all is read again.
        version = objects.head(keys.CONDEMNED) if cas else None
        found = read_condemned(objects)
        # Without compare-and-swap no pruner works beside pushes, so nothing can be on its way out.
        if not cas or version is None or not found.spare(digests):
            return found
        if _swap(objects, found, version):
            return found
        time.sleep(_PAUSE_S)
    msg = f"{keys.CONDEMNED} was changed by other clients {_TRIES} times while this push looked at it"
    raise RemoteError(msg, hint="push again")


def _swap(objects: Objects, found: Condemned, version: Listed) -> bool:
    return objects.update(keys.CONDEMNED, seal(found.render()), version) is not None
