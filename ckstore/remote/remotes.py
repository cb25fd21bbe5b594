"""The remotes of a store, by name: ``store.remotes``. Kept in ``config.json``, without credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ckstore.errors import BadInput, NoSuchRemote, RemoteError
from ckstore.model.document import refuse
from ckstore.model.times import text_of_time
from ckstore.ops import config_file
from ckstore.ops.acts import act, places_of
from ckstore.remote import keys
from ckstore.remote.abilities import Abilities
from ckstore.remote.target import Target, parse_target

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ckstore.objects.layout import Layout
    from ckstore.ops.context import Context
    from ckstore.remote.objects import Objects

MEMBER = "remotes"
# No slash, which makes a path of it; no dash first, which makes an option of it.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """A remote of a store.

    Attributes:
        name: What users call it.
        target: Where it is.
        uuid: Of the remote, or of the store that is there.
        abilities: What a probe saw the service do; None for a store in a directory, where nothing is tried.
    """

    name: str
    target: Target
    uuid: str
    abilities: Abilities | None = None

    def setting(self) -> dict[str, Any]:
        """Return what ``config.json`` keeps of it under its name."""
        abilities = None if self.abilities is None else self.abilities.to_json()
        return {"target": self.target.to_json(), "uuid": self.uuid, "abilities": abilities}


def _entry(name: str, value: Any, where: str) -> RemoteEntry:
    if _NAME.match(name) is None or not isinstance(value, dict) or not isinstance(value.get("uuid"), str):
        refuse(where, MEMBER, "names with a target and a uuid", {name: value})
    target, abilities = Target.from_json(value.get("target"), where), value.get("abilities")
    return RemoteEntry(
        name, target, value["uuid"], None if abilities is None else Abilities.from_json(abilities, where)
    )


def entries(layout: Layout) -> dict[str, RemoteEntry]:
    """Return the remotes of a store by their names."""
    found = config_file.read_config(layout).get(MEMBER, {})
    if not isinstance(found, dict):
        refuse(str(layout.config), MEMBER, "an object", found)
    return {name: _entry(name, value, str(layout.config)) for name, value in sorted(found.items())}


def entry_named(layout: Layout, name: str) -> RemoteEntry:
    """Return a remote by its name; "": the only one.

    Raises:
        NoSuchRemote: There is none of that name, or no only one.
    """
    found = entries(layout)
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    names = ", ".join(found)
    if not found:
        raise NoSuchRemote(f"the store {layout.path} has no remote", hint="ckstore remote add NAME s3://BUCKET/PREFIX")
    if not name:
        raise NoSuchRemote(f"the store {layout.path} has several remotes: {names}", hint="name one of them")
    raise NoSuchRemote(f"the store {layout.path} has no remote {name!r}, but {names}")


def open_objects(entry: RemoteEntry) -> Objects:
    """Return the objects of a remote on object storage."""
    from ckstore.remote.engine import ServiceObjects

    return ServiceObjects(entry.target, entry.abilities)


class Remotes:
    """The remotes of a store, by name; they are read from ``config.json`` each time."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def _act_places(self) -> tuple[object, ...]:
        return places_of(self._context.layout.root.path)

    def __repr__(self) -> str:
        return f"<remotes of {self._context.layout.root}>"

    def __iter__(self) -> Iterator[RemoteEntry]:
        return iter(self.list())

    @act
    def list(self) -> tuple[RemoteEntry, ...]:
        """Return all remotes, by their names."""
        return tuple(entries(self._context.layout).values())

    @act
    def get(self, name: str) -> RemoteEntry:
        """Return the remote of that name.

        Raises:
            NoSuchRemote: There is none.
        """
        return entry_named(self._context.layout, name)

    @act
    def add(
        self, name: str, target: str | os.PathLike[str], *, endpoint: str | None = None, region: str | None = None
    ) -> RemoteEntry:
        """Give a place a name, after trying what it does; what makes it a remote is written there if it is missing.

        Credentials come from the environment, a profile or a role whenever the remote is used, and are never kept.

        Args:
            name: 1 to 100 of the characters A-Z a-z 0-9 . _ -, beginning with neither a dot nor a dash.
            target: ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX``, ``az://CONTAINER/PREFIX``, or a store's directory.
            endpoint: URL of an S3-compatible service; None: that of the environment, or the provider's own.
            region: Of the bucket; None: that of the environment.

        Raises:
            BadInput: The name is taken by another place, the address is none, or the remote has another hash.
            StoreNotFound: There is no store in the directory.
            RemoteError: The place cannot be reached or used.
        """
        context = self._context
        context.check_writable()
        if _NAME.match(name) is None:
            msg = f"the name of a remote has 1 to 100 of the characters A-Z a-z 0-9 . _ -, got {name!r}"
            raise BadInput(msg, hint="it begins with neither a dot nor a dash")
        wanted = parse_target(target, endpoint=endpoint, region=region)
        self._refuse_taken(name, wanted)
        entry = self._tried(name, wanted, make=True)
        self._keep(entry)
        return entry

    @act
    def probe(self, name: str) -> RemoteEntry:
        """Try again what a remote does, and remember it.

        Raises:
            NoSuchRemote: There is none of that name, or no remote at its place any more.
            RemoteError: The place cannot be reached or used, or another remote is there.
        """
        self._context.check_writable()
        old = entry_named(self._context.layout, name)
        entry = self._tried(old.name, old.target, make=False)
        if entry.uuid != old.uuid:
            msg = f"another remote is at {old.target}: it has the uuid {entry.uuid}, {old.name} had {old.uuid}"
            raise RemoteError(msg, hint=f"if that is wanted: ckstore remote rm {old.name}, then add it again")
        self._keep(entry)
        return entry

    @act
    def remove(self, name: str) -> None:
        """Forget a remote; nothing at its place is touched.

        Raises:
            NoSuchRemote: There is none of that name.
        """
        self._context.check_writable()
        entry = entry_named(self._context.layout, name)

        def without(found: Any) -> Any:
            return {other: value for other, value in (found or {}).items() if other != entry.name} or None

        config_file.edit(self._context.layout, MEMBER, without)

    def _refuse_taken(self, name: str, target: Target) -> None:
        taken = entries(self._context.layout).get(name)
        if taken is not None and taken.target != target:
            raise BadInput(f"{name} is the remote at {taken.target}", hint=f"ckstore remote rm {name}, or another name")

    def _keep(self, entry: RemoteEntry) -> None:
        config_file.edit(self._context.layout, MEMBER, lambda found: {**(found or {}), entry.name: entry.setting()})

    def _tried(self, name: str, target: Target, *, make: bool) -> RemoteEntry:
        """Return what is at a place, after trying it; `make`: a remote, if there is none."""
        if target.kind == "store":
            return RemoteEntry(name, target, self._store_at(target))
        from ckstore.remote.info import RemoteInfo, check_hash, read_info
        from ckstore.remote.probe import probe

        settings = self._context.settings
        abilities, now = probe(target)
        objects = open_objects(RemoteEntry(name, target, "", abilities))
        if make and abilities.writes and objects.head(keys.INFO) is None:
            created = text_of_time(now or datetime.now(UTC))
            objects.create(keys.INFO, RemoteInfo.of(settings, created).render())
        # Read back, also after it was written: of two clients that make one remote, both take the one that is there.
        info = read_info(objects, name)
        check_hash(info, settings, name)
        return RemoteEntry(name, target, info.uuid, abilities)

    def _store_at(self, target: Target) -> str:
        from ckstore.ops.open.opening import open_context

        other, _ = open_context(target.path, readonly=True, recover=False, catalog_path=None)
        mine = self._context.settings
        if target.path.samefile(self._context.layout.path):
            raise BadInput(f"{target} is this store itself", hint="name another store")
        if other.settings.hash != mine.hash:
            msg = f"{target} names its blobs by {other.settings.hash}, and this store names them by {mine.hash}"
            raise BadInput(msg, hint="a store and its remote have the same hash")
        return other.settings.uuid


def check_takes_pushes(entry: RemoteEntry) -> None:
    """Raise if the probe saw that a remote cannot be pushed to.

    Raises:
        RemoteError: It cannot.
    """
    abilities = entry.abilities
    if abilities is None or (abilities.writes and abilities.lists_writes):
        return
    why = "it cannot be written with the credentials of the probe" if not abilities.writes else "it lists writes late"
    raise RemoteError(f"{entry.name} cannot be pushed to: {why}", hint=f"ckstore remote probe {entry.name}")
