"""Claims: stores evicted checkpoints and rely on the copies at a remote. Source: docs/format/remote-v1.md, "Evict".

``tests/protocol/claims.py`` is the model of this: a claim that is written before the remote is looked at keeps bytes
that a store relies on, although other stores remove checkpoints there meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckstore.errors import BadInput, CkstoreError, RemoteError
from ckstore.fs import locks
from ckstore.fs.store_path import StorePath
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest, short_id
from ckstore.model.document import parse_document, refuse
from ckstore.model.reports.transfer import StoreClaims
from ckstore.model.seal import seal
from ckstore.objects import trash
from ckstore.objects.documents.remote_only import read_remote_only
from ckstore.ops.context import Context
from ckstore.ops.failures import OF_ALL
from ckstore.remote import keys
from ckstore.remote.keys import Place
from ckstore.remote.objects import Objects, Remote
from ckstore.remote.small_objects import read_document

_FORMAT, _VERSION = "ckstore-remote-claim", 1
_MAX_BYTES = 512 * 2**20


class Claim(NamedTuple):
    """A claim as the listing of a remote has it."""

    store: str  # uuid of the store that relies on the checkpoint
    place: Place  # which one
    uuid: str  # its own, drawn for one eviction

    @property
    def key(self) -> str:
        """The key of its object."""
        return keys.claim(self.store, self.place, self.uuid)


class ClaimRecord(NamedTuple):
    """What a claim says."""

    host: str  # name of the machine
    path: str  # of the store on it
    blobs: tuple[str, ...]  # digests that the checkpoint needs at the remote


def write_claim(context: Context, objects: Objects, claim: Claim, digests: Iterable[str]) -> None:
    """Claim a checkpoint for a store. Whatever the store has looked at before, it must look at again."""
    members = {
        "format": _FORMAT,
        "version": _VERSION,
        "blobs": sorted({*digests}),
        "host": socket.gethostname(),
        "path": str(context.layout.path),
    }
    objects.send(claim.key, seal(canonical_json(members) + b"\n"))


def read_claim(objects: Objects, claim: Claim) -> ClaimRecord | None:
    """Return what a claim says; None: it was ended.

    Raises:
        RemoteError: It cannot be read, so what it needs is unknown.
    """
    data = objects.get(claim.key, _MAX_BYTES)
    return None if data is None else read_document(data, _parse, claim.key)


def _parse(data: bytes, where: str) -> ClaimRecord:
    members = parse_document(data, _FORMAT, _VERSION, where)
    blobs, host, path = (members.get(name) for name in ("blobs", "host", "path"))
    if not isinstance(blobs, list) or not all(is_digest(blob) for blob in blobs):
        refuse(where, "blobs", "digests", blobs)
    if not isinstance(host, str) or not isinstance(path, str):
        refuse(where, "host and path", "texts", [host, path])
    return ClaimRecord(host, path, tuple(blobs))


def claims_at(objects: Objects) -> list[Claim]:
    """Return the claims at a remote."""
    listed = (keys.claim_in(one.key) for one in objects.list(keys.CLAIMS))
    return [Claim(*found) for found in listed if found is not None]


def who_claims(context: Context, remote: Remote, claims: Iterable[Claim]) -> dict[Place, str]:
    """Say of each checkpoint with a claim which store relies on it.

    Raises:
        RemoteError: The remote does not answer.
    """
    found: dict[Place, str] = {}
    stores: dict[str, str] = {context.settings.uuid: "this store"}
    for claim in claims:
        if claim.store not in stores:
            said = _read_if_possible(remote, claim)
            where = "the store" if said is None else f"the store {said.path} on {said.host}"
            stores[claim.store] = f"{where} ({claim.store})"
        found[claim.place] = f"{stores[claim.store]} evicted its own copy and relies on this one"
    return found


def _read_if_possible(remote: Remote, claim: Claim) -> ClaimRecord | None:
    """As `read_claim`; None also for a damaged claim, which counts as well and only cannot say where its store is."""
    try:
        return read_claim(remote.objects, claim)
    except OF_ALL:
        raise
    except RemoteError:
        return None


def end_claims(context: Context, remote: Remote) -> list[Claim]:
    """Remove the claims of this store that nothing here needs any more; return the claims at the remote that stay."""
    # Listed first: an eviction writes elsewhere.json before its claim, so the file of each listed claim is seen.
    claims = claims_at(remote.objects)
    ended = {claim for claim in claims if claim.store == context.settings.uuid and not _is_needed(context, claim)}
    remote.objects.delete([claim.key for claim in ended])
    return [claim for claim in claims if claim not in ended]


def store_claims(context: Context, remote: Remote) -> tuple[StoreClaims, ...]:
    """See `ckstore.remote.remotes.Remotes.claims`."""
    by_store: dict[str, list[Claim]] = {}
    for claim in claims_at(remote.objects):
        by_store.setdefault(claim.store, []).append(claim)
    return tuple(_of_store(context, remote, store, claims) for store, claims in by_store.items())


def release_claims(context: Context, remote: Remote, store: str) -> StoreClaims:
    """See `ckstore.remote.remotes.Remotes.release`."""
    if store == context.settings.uuid:
        raise BadInput(f"{store} is this store, whose claims end when its bytes are back", hint="ckstore pull REF")
    claims = [claim for claim in claims_at(remote.objects) if claim.store == store]
    if not claims:
        raise BadInput(f"the store {store} has no claim at {remote.name}", hint=f"ckstore remote claims {remote.name}")
    report = _of_store(context, remote, store, claims)
    remote.objects.delete([claim.key for claim in claims])
    return report


def _of_store(context: Context, remote: Remote, store: str, claims: list[Claim]) -> StoreClaims:
    said = _read_if_possible(remote, claims[-1])
    refs = sorted({f"{claim.place.name}.{short_id(claim.place.id)}" for claim in claims})
    host, path = ("", "") if said is None else (said.host, said.path)
    return StoreClaims(store, host, path, store == context.settings.uuid, tuple(refs))


def _is_needed(context: Context, claim: Claim) -> bool:
    """Whether a checkpoint here, listed or dropped, names a claim, or cannot be read."""
    # Listed ones again at the end: one that is brought back meanwhile leaves trash/ after they were looked at.
    places = (_listed(context, claim.place), _dropped(context, claim.place), _listed(context, claim.place))
    return any(_names(path, claim.uuid) for directories in places for path in directories)


def _listed(context: Context, place: Place) -> Iterator[StorePath]:
    layout = context.layout
    fitting = (key for key in layout.of_step(place.run, place.step) if key.fits(*place))
    return (layout.checkpoint(key) for key in fitting)


def _dropped(context: Context, place: Place) -> Iterator[StorePath]:
    layout = context.layout
    for name in trash.names_in(layout.trash):
        key = trash.former_place(name)
        # What does not wait cannot be brought back; where other hosts may be at work all waits for a grace.
        if key is not None and key.fits(*place) and (context.shared or trash.left_s(layout.trash / name) > 0):
            yield layout.trash / name


def _names(path: StorePath, uuid: str) -> bool:
    try:
        with locks.lock_shared(path) as lock:
            document = read_remote_only(lock.fd)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (CkstoreError, OSError):  # it may name it
        return True
    return document is not None and any(holder.claim == uuid for holder in document.remotes)
