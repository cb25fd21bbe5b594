"""Recognizes a remote that has lost its description, but not its other objects.

The uuid in the description identifies the remote. If the remote got another uuid, evicted checkpoints would count as
lost in every store that relies on it. Source: docs/format/remote-v1.md, "remote.json".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckstore.errors import NoSuchRemote
from ckstore.model.digest import algorithm_of
from ckstore.model.words import arguments
from ckstore.objects.remote.remote_only import holders_at
from ckstore.ops.context import Context
from ckstore.ops.refs.listing import infos
from ckstore.remote import keys
from ckstore.remote.documents.claims import Claim, claims_at, read_if_possible
from ckstore.remote.documents.remote_info import RemoteInfo, check_hash
from ckstore.remote.objects import Objects
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only.lost_claims import evicted_paths
from ckstore.remote.service.remote_entries import entries
from ckstore.remote.service.target import Target
from ckstore.remote.source import ObjectSource


def new_info(context: Context, name: str, target: Target, objects: Objects, created: str) -> RemoteInfo:
    """Return a description for a remote that has none, with its former uuid if this store knows it.

    Raises:
        NoSuchRemote: Only other stores know the uuid, and rely on the remote.
        BadInput: The remote has checkpoints of stores with another hash.
    """
    claims, places = claims_at(objects), {*ObjectSource(objects, name).places()}
    own = {claim.uuid for claim in claims if claim.store == context.settings.uuid}
    holders = (holder for path in evicted_paths(context) for holder in holders_at(path))
    former = next((holder.uuid for holder in holders if holder.claim in own), "")
    if not former:
        refuse_claimed(objects, target, [claim for claim in claims if claim.uuid not in own])
        # Without claims, only clones rely on the remote. If its objects were also removed, it gets a new uuid.
        known = entries(context.layout).values()
        own_uuids = (entry.uuid for entry in known if places and entry.target == target)
        others = {entry.uuid for entry in known if entry.target != target}
        away = (info for info in infos(context, superseded=True) if info.elsewhere and place_of(info) in places)
        cloned = (holder for info in away for holder in holders_at(context.layout.checkpoint(info.key)))
        former = next(own_uuids, "") or next((holder.uuid for holder in cloned if holder.uuid not in others), "")
    info = RemoteInfo.of(context.settings, created, former)
    for place in places:
        check_hash(replace(info, hash=algorithm_of(place.id).name), context.settings, name)
    return info


def refuse_claimed(objects: Objects, target: Target, claims: Sequence[Claim]) -> None:
    """Raise `NoSuchRemote` if there are claims on a remote without a description, since their stores know its uuid."""
    if not claims:
        return
    store, said = claims[-1].store, read_if_possible(objects, claims[-1])
    where = "the store" if said is None else f"the store {said.path} on {said.host}"
    msg = f"there is no remote at {target}: {keys.INFO} is missing, but {where} ({store}) relies on the other objects"
    hint = (
        f"run ckstore remote add NAME {arguments(target.address)} in that store to restore {keys.INFO}; if the store "
        f"no longer exists, delete {keys.CLAIMS}{store}/ at {target}"
    )
    raise NoSuchRemote(msg, hint=hint)
