"""Pins, the content of ``pins/<name>.json``, without I/O. Source: docs/format/v1.md, "Pins"."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ckstore.errors import BadInput
from ckstore.model.brief import brief
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import is_digest
from ckstore.model.document import check_created, parse_document, refuse
from ckstore.model.names import RUN_PATTERN, check_run, check_step
from ckstore.model.times import time_of_text
from ckstore.model.words import printable

PIN_VERSION = 1
PIN_MAX_BYTES = 2**20
_FORMAT = "ckstore-pin"
_SUFFIX = ".json"
OF_A_FILE = " names it"
"""The end of the reason of a pin that an integration created, after the path of a file that contains the id."""


@brief()
@dataclass(frozen=True, slots=True)
class Pin:
    """A pin, which protects a checkpoint from retention and `Store.delete` until it is removed or expires.

    Attributes:
        name: Name of the pin, for `Store.unpin`.
        run, step: Run and step of the pinned checkpoint.
        id: Id of the pinned checkpoint, which is protected even if it is superseded.
        reason: The reason that the user gave.
        created: Time of creation in UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``.
        expires: Time of expiry in the same format, or None if the pin never expires.
        dangling: Whether the pinned checkpoint is no longer in the store. This is set when pins are listed.
    """

    name: str
    run: str
    step: int
    id: str
    reason: str
    created: str
    expires: str | None = None
    dangling: bool = False

    @property
    def is_of_a_file(self) -> bool:
        """Whether an integration created this pin for a file that names the checkpoint."""
        return self.reason.endswith(OF_A_FILE)

    def expired(self, now: datetime) -> bool:
        """Return whether the pin has expired at the time `now`, which has a time zone."""
        return self.expires is not None and time_of_text(self.expires) <= now

    def __str__(self) -> str:
        until = f", until {self.expires}" if self.expires else ""
        return printable(f"{self.reason or 'no reason given'} ({self.name}{until})")

    def render(self) -> bytes:
        """Return the content of the file of the pin."""
        members = {name: getattr(self, name) for name in ("run", "step", "id", "reason", "created", "expires")}
        return canonical_json({"format": _FORMAT, "version": PIN_VERSION, **members}) + b"\n"


def pin_name(file_name: str) -> str | None:
    """Return the name of the pin for a file in ``pins/``, or None if it is not the file of a pin."""
    name = file_name.removesuffix(_SUFFIX)
    if name == file_name or name.startswith(".") or RUN_PATTERN.match(name) is None:
        return None
    return name


def file_name(name: str) -> str:
    """Return the name of the file of a pin."""
    return f"{name}{_SUFFIX}"


def parse_pin(name: str, data: bytes, where: str) -> Pin:
    """Parse the file of the pin `name`."""
    members = parse_document(data, _FORMAT, PIN_VERSION, where)
    reason, expires, digest = members.get("reason"), members.get("expires"), members.get("id")
    if not isinstance(reason, str):
        refuse(where, "reason", "a string", reason)
    if not is_digest(digest):
        refuse(where, "id", "an id", digest)
    try:
        run, step = check_run(members.get("run")), check_step(members.get("step"))
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}") from error
    created = check_created(members.get("created"), where)
    if expires is not None:
        try:
            check_created(expires, where)
        except BadInput as error:
            raise BadInput(error.message.replace(": created: ", ": expires: ")) from error
    return Pin(
        name=name,
        run=run,
        step=step,
        id=str(digest),
        reason=reason,
        created=created,
        expires=expires,
    )
