"""What a user is told about the place of a store each time that it is opened."""

from __future__ import annotations

import os
import stat

from ckstore.model.doctor.owners import OwnerFacts, check_owner, check_permissions
from ckstore.model.doctor.place import PlaceFacts, check_place


def notes_at_opening(place: PlaceFacts, *, readonly: bool) -> tuple[str, ...]:
    """Return what costs or weakens a promise, one sentence each.

    Args:
        place: The filesystem of the store.
        readonly: Then whose the store is does not matter.

    Raises:
        OSError: The store cannot be looked at.
    """
    status = os.stat(place.path)
    # Numbers, not names: looking a name up may ask a directory service, which may not answer.
    facts = OwnerFacts(
        path=place.path,
        mode=stat.S_IMODE(status.st_mode),
        owner=f"uid {status.st_uid}",
        owner_id=status.st_uid,
        process_id=os.geteuid(),
    )
    findings = [*check_place(place), check_permissions(facts)]
    if not readonly:
        findings.append(check_owner(facts))
    return tuple(finding.found for finding in findings if finding.level in ("warning", "error"))
