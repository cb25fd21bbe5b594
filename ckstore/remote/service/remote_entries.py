"""The remotes of a store in ``config.json``, by name and without credentials."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from ckstore.errors import BadInput, NoSuchRemote, RemoteError
from ckstore.model.brief import brief
from ckstore.model.document import refuse
from ckstore.model.words import printable
from ckstore.objects.layout import Layout
from ckstore.ops import config_file
from ckstore.remote.objects import Objects
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.target import Target

MEMBER = "remotes"
# A name with a slash would look like a path. A leading dash would make it look like an option, and a leading dot would
# make its file hidden.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")


@brief()
@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """A remote of a store.

    Attributes:
        name: Its name for users.
        target: Its address, a URL or a directory.
        uuid: The uuid of the remote. If the entry refers to another store, the uuid of that store.
        abilities: The abilities of its service, according to a probe. None for a store, which is not probed.
    """

    name: str
    target: Target
    uuid: str
    abilities: Abilities | None = None

    def __str__(self) -> str:
        return printable(f"{self.name}: {self.target}")

    def setting(self) -> dict[str, Any]:
        """Return the value that ``config.json`` stores under its name."""
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
    """Return the remotes of a store, by name."""
    found = config_file.read_config(layout).get(MEMBER, {})
    if not isinstance(found, dict):
        refuse(str(layout.config), MEMBER, "an object", found)
    return {name: _entry(name, value, str(layout.config)) for name, value in sorted(found.items())}


def entry_named(layout: Layout, name: str) -> RemoteEntry:
    """Return the remote with this name. An empty name stands for the only remote."""
    if not isinstance(name, str):  # an int would be a file descriptor for `os.path.isdir`
        raise BadInput(f"the name of a remote is text, got {type(name).__name__}")
    found = entries(layout)
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if name in found:
        return found[name]
    names = ", ".join(found)
    if name and os.path.isdir(name):  # noqa: PTH112 - as the caller wrote it
        raise NoSuchRemote(f"the store {layout.path} has no remote {name!r}", hint=f"for the directory, write ./{name}")
    if not found:
        raise NoSuchRemote(f"the store {layout.path} has no remote", hint="ckstore remote add NAME s3://BUCKET/PREFIX")
    if not name:
        raise NoSuchRemote(f"the store {layout.path} has several remotes: {names}", hint="name one of them")
    raise NoSuchRemote(f"the store {layout.path} has no remote {name!r}, but {names}")


def open_objects(target: Target, abilities: Abilities | None = None) -> Objects:
    """Return the objects of a target. `abilities` are those of its service, if the service was probed."""
    if target.kind == "directory":
        from ckstore.remote.service.directory_objects import DirectoryObjects

        return DirectoryObjects(target, abilities)
    from ckstore.remote.service.engine import ServiceObjects

    return ServiceObjects(target, abilities)


def check_takes_pushes(entry: RemoteEntry) -> None:
    """Raise `RemoteError` if the probe showed that the remote cannot accept pushes."""
    abilities = entry.abilities
    if abilities is None or (abilities.writes and abilities.lists_writes):
        return
    why = (
        "it cannot be written with the credentials of the probe"
        if not abilities.writes
        else "new objects are not listed at once"
    )
    raise RemoteError(f"{entry.name} cannot be pushed to: {why}", hint=f"ckstore remote probe {entry.name}")


def check_name(name: str) -> None:
    """Raise `BadInput` unless a remote can have this name."""
    if _NAME.match(name) is None:
        msg = f"the name of a remote has 1 to 100 of the characters A-Z a-z 0-9 . _ -, got {name!r}"
        raise BadInput(msg, hint="it begins with neither a dot nor a dash")
