"""A claim records on a remote that a store evicted a checkpoint and relies on the copy there.

``tests/protocol/claims.py`` models claims. A store writes its claim before it checks that the remote has the bytes. So
the remote keeps the bytes even if other stores delete checkpoints there at the same time. Source:
docs/format/remote-v1.md, "Evict".
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckstore.errors import BadInput, CkstoreError, RemoteError
from ckstore.fs import locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest, short_id
from ckstore.model.document import parse_document, refuse
from ckstore.model.remote.transfer import StoreClaims
from ckstore.model.seal import seal
from ckstore.objects import trash
from ckstore.objects.remote.remote_only import read_remote_only
from ckstore.ops.context import Context
from ckstore.remote import keys
from ckstore.remote.keys import Place
from ckstore.remote.objects import OF_ALL, Objects, Remote
from ckstore.remote.small_objects import read_document

_FORMAT, _VERSION = "ckstore-remote-claim", 1
_MAX_BYTES = 512 * 2**20


class Claim(NamedTuple):
    """A claim, as described by its key on a remote."""

    store: str  # uuid of the store that relies on the checkpoint
    place: Place  # the claimed checkpoint
    uuid: str  # uuid of the claim, random for each eviction

    @property
    def key(self) -> str:
        """The key of the claim."""
        return keys.claim(self.store, self.place, self.uuid)


class ClaimRecord(NamedTuple):
    """The content of a claim."""

    host: str  # name of the machine
    path: str  # path of the store on that machine
    blobs: tuple[str, ...]  # digests of the objects in ``blobs/`` that the checkpoint needs


def write_claim(context: Context, objects: Objects, claim: Claim, digests: Iterable[str]) -> None:
    """Claim a checkpoint for a store.

    After this call, the store must repeat every check of the remote that it made before.
    """
    members = {
        "format": _FORMAT,
        "version": _VERSION,
        "blobs": sorted({*digests}),
        "host": socket.gethostname(),
        "path": str(context.layout.path),
    }
    objects.send(claim.key, seal(canonical_json(members) + b"\n"))


def read_claim(objects: Objects, claim: Claim) -> ClaimRecord | None:
    """Return the content of a claim, or None if the claim has ended.

    Raises:
        RemoteError: The claim cannot be read, so the blobs that it names are unknown.
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
    """Return all claims on a remote."""
    listed = (keys.claim_in(one.key) for one in objects.list(keys.CLAIMS))
    return [Claim(*found) for found in listed if found is not None]


def who_claims(context: Context, remote: Remote, claims: Iterable[Claim]) -> dict[Place, str]:
    """Return a sentence for each claimed checkpoint, which names a store that relies on the checkpoint.

    Raises:
        RemoteError: The remote does not answer.
    """
    found: dict[Place, str] = {}
    stores: dict[str, str] = {context.settings.uuid: "this store"}
    for claim in claims:
        if claim.store not in stores:
            said = read_if_possible(remote.objects, claim)
            where = "the store" if said is None else f"the store {said.path} on {said.host}"
            stores[claim.store] = f"{where} ({claim.store})"
        found[claim.place] = f"{stores[claim.store]} evicted its own copy and relies on this one"
    return found


def read_if_possible(objects: Objects, claim: Claim) -> ClaimRecord | None:
    """Return the content of a claim, or None if it has ended or is damaged. A damaged claim still counts."""
    try:
        return read_claim(objects, claim)
    except OF_ALL:
        raise
    except RemoteError:
        return None


def end_claims(context: Context, remote: Remote) -> list[Claim]:
    """Delete the claims of this store that are no longer needed. Return all other claims on the remote."""
    ended, others = _sorted_claims(context, remote)
    remote.objects.delete([claim.key for claim in ended])
    return others


def needed_claims(context: Context, remote: Remote) -> list[Claim]:
    """Return the claims on the remote that `end_claims` would return, and delete none."""
    return _sorted_claims(context, remote)[1]


def _sorted_claims(context: Context, remote: Remote) -> tuple[list[Claim], list[Claim]]:
    """Return the claims of this store that are no longer needed, and all other claims on the remote."""
    # The claims are listed before the local files are read. An eviction writes elsewhere.json before its claim, so the
    # file of each listed claim already exists.
    claims = claims_at(remote.objects)
    ended = [claim for claim in claims if claim.store == context.settings.uuid and not _is_needed(context, claim)]
    return ended, [claim for claim in claims if claim not in ended]


def store_claims(context: Context, remote: Remote) -> tuple[StoreClaims, ...]:
    """See `ckstore.remote.remotes.Remotes.claims`."""
    by_store: dict[str, list[Claim]] = {}
    for claim in claims_at(remote.objects):
        by_store.setdefault(claim.store, []).append(claim)
    return tuple(_claims_entry(context, remote, store, claims) for store, claims in by_store.items())


def release_claims(context: Context, remote: Remote, store: str) -> StoreClaims:
    """See `ckstore.remote.remotes.Remotes.release`."""
    if store == context.settings.uuid:
        raise BadInput(f"{store} is this store, whose claims end when its bytes are restored", hint="ckstore pull REF")
    claims = [claim for claim in claims_at(remote.objects) if claim.store == store]
    if not claims:
        raise BadInput(f"the store {store} has no claim on {remote.name}", hint=f"ckstore remote claims {remote.name}")
    report = _claims_entry(context, remote, store, claims)
    remote.objects.delete([claim.key for claim in claims])
    return report


def _claims_entry(context: Context, remote: Remote, store: str, claims: list[Claim]) -> StoreClaims:
    said = read_if_possible(remote.objects, claims[-1])
    refs = sorted({f"{claim.place.name}.{short_id(claim.place.id)}" for claim in claims})
    host, path = ("", "") if said is None else (said.host, said.path)
    return StoreClaims(store, host, path, store == context.settings.uuid, tuple(refs))


def _is_needed(context: Context, claim: Claim) -> bool:
    """Whether a local checkpoint, listed or deleted, names a claim, or may name it because it is unreadable."""
    # Listed checkpoints are read again at the end, because an undo during the check moves a checkpoint out of trash/.
    places = (_live_paths(context, claim.place), _trash_paths(context, claim.place), _live_paths(context, claim.place))
    return any(_names_claim(path, claim.uuid) for directories in places for path in directories)


def _live_paths(context: Context, place: Place) -> Iterator[StorePath]:
    layout = context.layout
    fitting = (key for key in layout.of_step(place.run, place.step) if key.fits(*place))
    return (layout.checkpoint(key) for key in fitting)


def _trash_paths(context: Context, place: Place) -> Iterator[StorePath]:
    layout = context.layout
    for name in trash.names_in(layout.trash):
        key = trash.former_place(name)
        # A checkpoint whose undo period is over cannot be restored. If several hosts use the store, its claims are kept
        # as long as it is in trash.
        if (
            key is not None
            and key.fits(*place)
            and (not context.view.frees_at_once or trash.left_s(layout.trash / name) > 0)
        ):
            yield layout.trash / name


def _names_claim(path: StorePath, uuid: str) -> bool:
    try:
        with locks.lock_shared(path) as lock:
            document = read_remote_only(lock.fd)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (CkstoreError, OSError):  # unreadable, so it may name the claim
        return True
    return document is not None and any(holder.claim == uuid for holder in document.remotes)
