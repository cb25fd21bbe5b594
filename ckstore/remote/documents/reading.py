"""Reads a small object of a remote: what cannot be read is the remote's fault, not an argument's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ckstore.errors import BadInput, DamagedBlob, RemoteError
from ckstore.model.seal import Document, read

D = TypeVar("D", bound=Document)


def read_document(data: bytes, parse: Callable[[bytes, str], D], where: str) -> D:
    """Return what a small object says."""
    try:
        return read(data, parse, where)
    except (BadInput, DamagedBlob) as error:
        failure = RemoteError(error.message, hint="read it again; if it stays so, look at who else writes there")
    raise failure
