"""Which place a caller means by the name of a remote: object storage, or another store in a directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ckstore.errors import BadInput, DamagedBlob, NoSuchRemote
from ckstore.fs import files
from ckstore.fs.peek import resolved
from ckstore.model.digest import Buffer
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context
from ckstore.ops.open.opening import open_context
from ckstore.ops.settings_file import read_settings
from ckstore.remote import keys
from ckstore.remote.decode import Near, nothing_near
from ckstore.remote.documents.info import check_uuid_is, read_info
from ckstore.remote.objects import Remote
from ckstore.remote.other_store import StoreSource
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.entries import check_takes_pushes, entries, entry_named, open_objects
from ckstore.remote.service.target import Target, parse_target
from ckstore.remote.source import ObjectSource, Source


@dataclass(frozen=True, slots=True)
class OtherStore:
    """A store in another directory."""

    name: str  # what users call it
    context: Context  # it, open


RemoteLike = str | os.PathLike[str]
"""Name of a remote, or the directory of another store."""


def reach(context: Context, remote: RemoteLike | None, *, writing: bool = False) -> Remote | OtherStore:
    """Return the remote that a caller names; None: the only one that the store has.

    Raises:
        RemoteError: There is none of that name.
        BadInput: It is this store itself.
    """
    if remote is not None and (not isinstance(remote, str) or os.sep in remote):
        # A URL is not looked for as a directory of that name.
        if (target := parse_target(remote)).kind == "url":
            there = [one.name for one in entries(context.layout).values() if one.target == target]
            hint = f"it has the name {there[0]}" if there else f"ckstore remote add NAME {target.address}"
            raise NoSuchRemote(f"a remote that is a URL is given by its name, got {target.address}", hint=hint)
        path = resolved(remote)
        # By its absolute path: what is let go because of it is looked for there from anywhere.
        return _other_store(context, path, str(path), writing=writing)
    return open_remote(context, remote or "", writing=writing)


def open_remote(context: Context, name: str, *, writing: bool = False) -> Remote | OtherStore:
    """Return the remote that the settings of the store have under a name; "": the only one."""
    entry = entry_named(context.layout, name)
    if entry.target.kind == "store":
        other = _other_store(context, resolved(entry.target.path), entry.name, writing=writing)
        if writing:
            check_uuid_is(other.context.settings.uuid, entry.uuid, entry.name)
        return other
    if writing:
        check_takes_pushes(entry)
    # Entered by a probe; a service that was never tried is taken to compare nothing.
    seen = entry.abilities or Abilities(cas="no", checks_bodies=None)
    objects = open_objects(entry.target, entry.abilities)
    return Remote(entry.name, objects, seen.cas != "no", seen.checks_bodies is True, entry.uuid)


def _other_store(context: Context, path: Path, name: str, *, writing: bool) -> OtherStore:
    opened, _ = open_context(path, readonly=not writing, recover=writing, catalog_path=None)
    if opened.settings.uuid == context.settings.uuid and path.samefile(context.layout.path):
        raise BadInput(f"{name} is this store itself", hint="name another store, or a remote")
    if opened.settings.hash != context.settings.hash:
        msg = f"{name} names its blobs by {opened.settings.hash}, and this store by {context.settings.hash}"
        raise BadInput(msg, hint="a store takes checkpoints of stores with the same hash")
    return OtherStore(name, opened)


def source_of(remote: Remote | OtherStore, near: Near = nothing_near) -> Source:
    """Return what reads from a remote; it decodes with the blobs that are near."""
    if isinstance(remote, Remote):
        return ObjectSource(remote.objects, remote.name, near)
    return StoreSource(remote.name, remote.context)


def near(layout: Layout) -> Near:
    """Return what gives the plain blobs of a store."""

    def read(digest: str) -> Buffer | None:
        try:
            return files.read_file(layout.blob(digest), most_bytes=BLOB_MAX_BYTES, is_blob=True)
        except (OSError, DamagedBlob):  # a base that is not here comes from where the rest comes from
            return None

    return read


def uuid_of(remote: Remote | OtherStore) -> str:
    """Return the uuid of what is at a remote; another one under its name is another remote."""
    if isinstance(remote, Remote):
        return read_info(remote.objects, remote.name).uuid
    return remote.context.settings.uuid


def settings_there(target: Target, name: str) -> tuple[str, int] | None:
    """Return the hash and the chunk size of what is at a target; None: no remote; `StoreNotFound`: no store."""
    if target.kind == "store":
        settings = read_settings(target.path)
        return settings.hash, settings.chunk_bytes
    objects = open_objects(target)
    if objects.head(keys.INFO) is None:
        return None
    info = read_info(objects, name)
    return info.hash, info.chunk_bytes
