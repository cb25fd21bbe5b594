"""The content of ``store.json`` and ``config.json``, without I/O. Source: docs/format/v1.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckstore.errors import BadInput
from ckstore.model.canonical import canonical_json
from ckstore.model.digest import ALGORITHMS, Algorithm, algorithm_named
from ckstore.model.document import check_created, check_requires, parse_document, refuse
from ckstore.model.manifest.describe import check_metadata, decoded_metadata, encode_metadata

STORE_VERSION = 1
# Pieces of whole MiB can be mapped contiguously with any page size.
CHUNK_GRAIN_BYTES = 2**20
CHUNK_MAX_BYTES = 2**30
DEFAULT_CHUNK_BYTES = 32 * 2**20  # docs/adr/0009-chunks-threads-packs.md
ELSEWHERE = "elsewhere"
"""An entry of `requires`: some blobs may be only on remotes. An older reader would report incomplete checkpoints."""
CHECKPOINT_IDS = "checkpoint-ids"
"""An entry of `requires`: directories are named after checkpoint ids. Draft versions would not find checkpoints."""
_KNOWN = (CHECKPOINT_IDS, ELSEWHERE)
SETTINGS_MAX_BYTES = 2**20
_STORE_FORMAT = "ckstore-store"
_CONFIG_FORMAT = "ckstore-config"
_WANTED = ("uuid", "hash", "chunk_bytes", "created")
_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of a store that are fixed when it is created.

    Attributes:
        uuid: Id of the store, in lower case with dashes.
        hash: Name of the algorithm of all digests (``xxh3_128`` or ``blake3``).
        chunk_bytes: Size of the chunks into which tensors are cut, a multiple of 1 MiB up to 1 GiB.
        created: Time of creation in UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``.
        requires: Features that a reader must support.
    """

    uuid: str
    hash: str
    chunk_bytes: int
    created: str
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_uuid(self.uuid)
        algorithm_named(self.hash)
        check_chunk_bytes(self.chunk_bytes)
        check_created(self.created, "the settings of a store")

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of all digests of the store."""
        return ALGORITHMS[self.hash]

    def render(self) -> bytes:
        """Return the content of ``store.json``."""
        members = {name: getattr(self, name) for name in _WANTED}
        requires = {"requires": list(self.requires)} if self.requires else {}
        return canonical_json({"format": _STORE_FORMAT, "version": STORE_VERSION, **members, **requires}) + b"\n"


def check_uuid(uuid: object) -> None:
    """Raise an error unless a value has the form of a uuid."""
    if not isinstance(uuid, str) or _UUID_PATTERN.match(uuid) is None:
        raise BadInput(f"uuid: wanted 32 lower-case hexadecimal digits in five groups, got {uuid!r:.80}")


def check_chunk_bytes(chunk_bytes: object) -> int:
    """Return `chunk_bytes` if it is valid, otherwise raise an error."""
    if (
        isinstance(chunk_bytes, bool)
        or not isinstance(chunk_bytes, int)
        or not CHUNK_GRAIN_BYTES <= chunk_bytes <= CHUNK_MAX_BYTES
        or chunk_bytes % CHUNK_GRAIN_BYTES
    ):
        raise BadInput(
            f"chunk_bytes must be a multiple of {CHUNK_GRAIN_BYTES} (1 MiB) "
            f"up to {CHUNK_MAX_BYTES} (1 GiB), got {chunk_bytes!r}"
        )
    return chunk_bytes


def parse_settings(data: bytes, where: str) -> StoreSettings:
    """Return the settings in ``store.json``."""
    members = parse_document(data, _STORE_FORMAT, STORE_VERSION, where)
    requires = members.get("requires", [])
    check_requires(requires, _KNOWN, where)
    missing = [name for name in _WANTED if name not in members]
    if missing:
        refuse(where, "the members", ", ".join(_WANTED), f"no {', '.join(missing)}", words=True)
    try:
        return StoreSettings(**{name: members[name] for name in _WANTED}, requires=tuple(requires))
    except BadInput as error:
        raise BadInput(f"{where}: {error.message}", hint=error.hint) from error


def render_config(config: Mapping[str, Any]) -> bytes:
    """Return the content of ``config.json`` for settings that may change, whose values are JSON-like."""
    document = encode_metadata(config)
    return canonical_json({**document, "format": _CONFIG_FORMAT, "version": STORE_VERSION}) + b"\n"


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """Return the settings in ``config.json``, which are all members except `format` and `version`."""
    members = parse_document(data, _CONFIG_FORMAT, STORE_VERSION, where)
    del members["format"], members["version"]
    return decoded_metadata(check_metadata(members, where, "the settings"))
