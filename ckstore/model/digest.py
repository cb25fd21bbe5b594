"""Digests, which name bytes by their content. Source: docs/format/v1.md, "Terms"."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import xxhash

from ckstore.errors import BadInput, MissingExtra

Buffer = bytes | bytearray | memoryview

DIGEST_PATTERN = re.compile(r"(?:xxh3-[0-9a-f]{32}|blake3-[0-9a-f]{64})\Z")


class RunningDigest(Protocol):
    """A digest of bytes that arrive in parts."""

    def update(self, data: Buffer, /) -> object:
        """Add `data` to the digest."""

    def hexdigest(self) -> str:
        """Return the hexadecimal digits for all bytes so far."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A hash algorithm that a store can use."""

    name: str  # as in ``store.json``: ``xxh3_128`` or ``blake3``
    prefix: str  # first part of each digest: ``xxh3`` or ``blake3``
    collision_resistant: bool  # whether equal digests mean equal bytes even when an adversary chose them
    # Starts a running digest. One-shot and running digests of more than 64 KiB release the GIL.
    start: Callable[[], RunningDigest]

    def digest(self, data: Buffer) -> str:
        """Return the digest of `data`, a contiguous buffer."""
        running = self.start()
        running.update(data)
        return f"{self.prefix}-{running.hexdigest()}"

    def digest_of_parts(self, running: RunningDigest) -> str:
        """Return the digest of all bytes that were added to `running`."""
        return f"{self.prefix}-{running.hexdigest()}"


def _start_blake3() -> RunningDigest:
    try:
        # This package is an extra. Stores with xxh3 work without it.
        import blake3  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra.of(error, "this store is hashed with blake3 and needs", "blake3", "blake3") from error
    running: RunningDigest = blake3.blake3()
    return running


ALGORITHMS = {
    "xxh3_128": Algorithm("xxh3_128", "xxh3", collision_resistant=False, start=xxhash.xxh3_128),
    "blake3": Algorithm("blake3", "blake3", collision_resistant=True, start=_start_blake3),
}
_BY_PREFIX = {algorithm.prefix: algorithm for algorithm in ALGORITHMS.values()}


def algorithm_named(name: object) -> Algorithm:
    """Return the algorithm with a name from ``store.json``."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise BadInput(f"hash must be one of {', '.join(ALGORITHMS)}, got {name!r}")
    return ALGORITHMS[name]


def algorithm_of(digest: str) -> Algorithm:
    """Return the algorithm of a valid digest (`is_digest`)."""
    return _BY_PREFIX[digest.partition("-")[0]]


def is_digest(text: object) -> bool:
    """Return whether `text` has the form of a digest."""
    return isinstance(text, str) and DIGEST_PATTERN.match(text) is not None


def fan_out(digest: str) -> str:
    """Return the name of a blob's directory in ``blobs/``, the first two hexadecimal digits of the digest."""
    # The canonical path of each blob is made with this function. A digest such as "../.." from a manifest must not
    # become a path.
    if not is_digest(digest):
        raise BadInput(f"the name of a blob must be a digest such as xxh3-0123…, got {digest!r}")
    return digest.partition("-")[2][:2]


def short_id(digest: str, digits: int = 10) -> str:
    """Return the first hexadecimal digits of a digest, for display."""
    return digest.partition("-")[2][:digits]
