"""The digest that a small JSON file carries of itself. Source: docs/format/v1.md, "Digests of small files".

Settings, pins and annotations are not covered by the id of a checkpoint, so a flipped bit in one would read as another
metric or another policy. Without the member a file is taken as it is: of an older ckstore, or written by hand.
"""

from __future__ import annotations

import json

from ckstore.errors import DamagedBlob
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import ALGORITHMS
from ckstore.model.document import parse_object

MEMBER = "digest"
_ALGORITHM = ALGORITHMS["xxh3_128"]  # it finds accidents; whoever may write to the store can write a digest, too


def seal(data: bytes) -> bytes:
    """Return the JSON object in `data` with the digest of itself; one that it has is replaced."""
    members = json.loads(data)
    members.pop(MEMBER, None)
    return canonical_json({**members, MEMBER: _ALGORITHM.digest(canonical_json(members))}) + b"\n"


def check_seal(data: bytes, where: str) -> bool:
    """Compare a file with the digest that it carries; False if it carries none.

    Args:
        data: Its whole content, a JSON object.
        where: Its path, for messages.

    Raises:
        DamagedBlob: They differ.
        BadInput: It is no JSON object.
    """
    members = parse_object(data, where=where)
    wanted = members.pop(MEMBER, None)
    if wanted is None:
        return False
    found = _ALGORITHM.digest(canonical_json(members))
    if found != wanted:
        msg = f"{where} is damaged: its content has the digest {found}, wanted {str(wanted)[:80]}"
        raise DamagedBlob(msg, hint="if it was changed by hand, remove its member digest")
    return True
