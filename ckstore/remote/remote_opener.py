"""Resolves the names of remotes. A store in another directory can be read like a remote, but is never pushed to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ckstore.errors import BadInput, DamagedBlob, NoSuchRemote
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import resolved
from ckstore.model.digest import Buffer
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES
from ckstore.model.words import arguments
from ckstore.objects.layout import Layout
from ckstore.ops.context import Context
from ckstore.ops.open.opening import open_context
from ckstore.ops.settings_file import is_store, read_settings
from ckstore.remote import keys
from ckstore.remote.deltas.decode import Near, nothing_near
from ckstore.remote.documents.remote_info import read_info
from ckstore.remote.objects import Remote
from ckstore.remote.other_store import StoreSource
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.remote_entries import check_takes_pushes, entries, entry_named, open_objects
from ckstore.remote.service.target import Target, parse_target
from ckstore.remote.source import ObjectSource, Source


@dataclass(frozen=True, slots=True)
class OtherStore:
    """A store in another directory."""

    name: str  # as users write it
    context: Context  # the open store


RemoteLike = str | os.PathLike[str]
"""The name, URL or directory of a remote, or the directory of another store, which is only read."""


def open_source(context: Context, remote: RemoteLike | None) -> Remote | OtherStore:
    """Return the remote or store that a caller names, for reading. Without a name, return the only remote.

    Raises:
        RemoteError: No remote has that name.
        BadInput: The name is that of this store itself.
    """
    name = _name_of(context, remote)
    if isinstance(name, Path):
        return _other_store(context, name, str(name))
    found = entries(context.layout)
    entry = found.get(name) if name or len(found) != 1 else next(iter(found.values()))
    if entry is not None and entry.target.kind == "store":
        return _other_store(context, resolved(entry.target.path), entry.name)
    return open_remote(context, name)


def named_remote(context: Context, remote: RemoteLike | None, *, writing: bool = True) -> Remote:
    """Return the remote that a caller names, for calls that need a remote and not a store, such as a push.

    Raises:
        RemoteError: No remote has that name.
        BadInput: The name is that of a store.
    """
    name = _name_of(context, remote)
    if isinstance(name, Path):
        raise _is_store(str(name), name)
    return open_remote(context, name, writing=writing)


def _name_of(context: Context, remote: RemoteLike | None) -> str | Path:
    """Return the name of a remote, or the directory of a store."""
    if remote is None or (isinstance(remote, str) and os.sep not in remote):
        return remote or ""
    # `parse_target` distinguishes URLs from directories, so a URL is never mistaken for a path.
    target = parse_target(remote)
    there = [one.name for one in entries(context.layout).values() if one.target == target]
    if there:
        return there[0]
    if target.kind == "directory" and is_store(target.path):
        # Resolve the path now, because the working directory may change before later reads.
        return resolved(target.path)
    msg = f"the store {context.layout.path} has no remote at {target}"
    raise NoSuchRemote(msg, hint=f"ckstore remote add NAME {arguments(target.address)}")


def open_remote(context: Context, name: str, *, writing: bool = False) -> Remote:
    """Return the remote that has this name in the settings. An empty name stands for the only remote."""
    entry = entry_named(context.layout, name)
    if entry.target.kind == "store":
        raise _is_store(entry.name, entry.target.path)
    if writing:
        check_takes_pushes(entry)
    # The abilities come from a probe. A service that was never probed is treated as one without compare-and-swap.
    seen = entry.abilities or Abilities(cas="no", checks_bodies=None)
    objects = open_objects(entry.target, entry.abilities)
    return Remote(entry.name, objects, seen.cas != "no", seen.checks_bodies is True, entry.uuid)


def refuse_store(target: Target) -> None:
    """Raise `BadInput` if the directory for a new remote is a store."""
    if target.kind != "url" and is_store(target.path):
        raise _is_store(str(target.path), target.path)


def _is_store(name: str, path: Path) -> BadInput:
    if name == str(path):
        told, hint = f"{name} is a store", "choose a directory of its own for the remote"
    else:
        told = f"{name} is a store, in {path}"
        hint = f"copy it into a remote: ckstore remote convert {name} NEW {arguments(f'{path}-remote')}"
    return BadInput(f"{told}: other stores may read it, but never write to it", hint=hint)


def _other_store(context: Context, path: Path, name: str) -> OtherStore:
    opened, _ = open_context(path, readonly=True, recover=False, catalog_path=None)
    if opened.settings.uuid == context.settings.uuid and path.samefile(context.layout.path):
        raise BadInput(f"{name} is this store itself", hint="name another store, or a remote")
    if opened.settings.hash != context.settings.hash:
        msg = f"{name} uses the hash {opened.settings.hash}, but this store uses {context.settings.hash}"
        raise BadInput(msg, hint="a store takes checkpoints of stores with the same hash")
    return OtherStore(name, opened)


def source_of(remote: Remote | OtherStore, near: Near = nothing_near) -> Source:
    """Return a source that reads from a remote, and uses local blobs from `near` as bases for decoding."""
    if isinstance(remote, Remote):
        return ObjectSource(remote.objects, remote.name, near)
    return StoreSource(remote.name, remote.context)


def near(layout: Layout) -> Near:
    """Return a function that reads the plain blobs of a store."""

    def read(digest: str) -> Buffer | None:
        try:
            return files.read_file(layout.blob(digest), most_bytes=BLOB_MAX_BYTES, is_blob=True)
        except (OSError, DamagedBlob):  # a base that is not local is downloaded
            return None

    return read


def uuid_of(remote: Remote | OtherStore) -> str:
    """Return the uuid of the remote or store. If a recorded uuid differs, the name now refers to another remote."""
    if isinstance(remote, Remote):
        return read_info(remote.objects, remote.name).uuid
    return remote.context.settings.uuid


def settings_there(target: Target, name: str) -> tuple[str, int] | None:
    """Return the hash and the chunk size of the store or remote at a target, or None if the target has neither."""
    if target.kind != "url" and is_store(target.path):
        settings = read_settings(target.path)
        return settings.hash, settings.chunk_bytes
    if target.kind == "directory" and not dirfd_stat.is_directory(target.path):
        return None
    objects = open_objects(target)
    if objects.head(keys.INFO) is None:
        return None
    info = read_info(objects, name)
    return info.hash, info.chunk_bytes
