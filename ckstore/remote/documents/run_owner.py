"""``runs/RUN/owner.json``: the store that mirrors a run. Source: docs/format/remote-v1.md, "Mirror of a run"."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from ckstore.model.canonical import canonical_json
from ckstore.model.document import parse_document, refuse
from ckstore.model.names import MAX_SEQUENCE, is_run
from ckstore.model.seal import seal
from ckstore.model.settings.settings import check_uuid
from ckstore.remote import keys
from ckstore.remote.objects import ObjectEntry, Objects
from ckstore.remote.small_objects import read_document

_FORMAT, _VERSION = "ckstore-remote-owner", 1
_MAX_BYTES = 2**20
_LIFE_LIMITS_S = 60, 86_400
LIFE_S = 600
"""An owner counts as alive for this long after its last write, so a dead node blocks a run for at most ten minutes."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The content of ``owner.json``."""

    run: str
    store: str  # uuid of the store
    host: str  # name of its machine
    boot: str  # boot id of that machine
    path: str  # path of the store on that machine
    epoch: int = 1  # 1 for the first owner; each takeover by another store adds one
    sequence: int = 0  # at least the sequence number of each checkpoint that the owner has pushed
    life_s: float = LIFE_S

    def render(self) -> bytes:
        """Return the content of the object."""
        members = {
            "format": _FORMAT,
            "version": _VERSION,
            "boot": self.boot,
            # Each write gets a random value, because many services derive the tag of a version from its bytes.
            "change": uuid.uuid4().hex,
            "epoch": self.epoch,
            "host": self.host,
            "life_s": self.life_s,
            "path": self.path,
            "run": self.run,
            "sequence": self.sequence,
            "store": self.store,
        }
        return seal(canonical_json(members) + b"\n")


def _parse(data: bytes, where: str) -> Owner:
    members = parse_document(data, _FORMAT, _VERSION, where)
    run, store, host, boot, path = (members.get(name) for name in ("run", "store", "host", "boot", "path"))
    texts = [run, store, host, boot, path]
    if not all(isinstance(text, str) for text in texts) or not is_run(str(run)):
        refuse(where, "run, store, host, boot and path", "texts, and the name of a run", texts)
    check_uuid(store)
    epoch: Any = members.get("epoch")
    sequence: Any = members.get("sequence")
    for name, number in (("epoch", epoch), ("sequence", sequence)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_SEQUENCE:
            refuse(where, name, f"a whole number from 0 to {MAX_SEQUENCE}", number)
    life_s, (least_s, most_s) = members.get("life_s"), _LIFE_LIMITS_S
    if isinstance(life_s, bool) or not isinstance(life_s, int | float) or not least_s <= life_s <= most_s:
        refuse(where, "life_s", f"seconds from {least_s} to {most_s}", life_s)
    return Owner(str(run), str(store), str(host), str(boot), str(path), epoch, sequence, life_s)


def read_owner(objects: Objects, run: str) -> tuple[Owner, ObjectEntry] | None:
    """Return the owner of a run and the version of its object, or None if no store owns the run."""
    # The version is read before the content. If another client writes between the two reads, the swap fails.
    version = objects.head(keys.owner(run))
    data = None if version is None else objects.get(keys.owner(run), _MAX_BYTES)
    return None if version is None or data is None else (read_document(data, _parse, keys.owner(run)), version)
