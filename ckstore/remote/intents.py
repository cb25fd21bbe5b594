"""Intents: what a push is going to need, written before it looks at the remote. Source: docs/format/remote-v1.md."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ckstore.model.canonical import canonical_json
from ckstore.model.seal import seal
from ckstore.remote.keys import Place
from ckstore.remote.objects import Objects
from ckstore.version import __version__

LIFE_S = 3600
"""So long a pruner spares what an intent names after it was last written."""


class Voided(Exception):
    """A pruner took the intent away, or it was not renewed in time: the push begins again with another."""


@dataclass(slots=True)
class Intent:
    """The intent of this process for one checkpoint."""

    key: str  # of its object
    place: Place  # the checkpoint
    digests: tuple[str, ...]  # every blob that it needs
    clock: Callable[[], float]
    version: str | None = None  # the mark of what this process wrote last; None: nothing yet
    written_s: float = 0.0  # when, by `clock`
    mutex: threading.Lock = field(default_factory=threading.Lock)  # held while it is renewed

    @classmethod
    def of(cls, place: Place, digests: Iterable[str], clock: Callable[[], float]) -> Intent:
        """Return an intent that is not written yet."""
        return cls(f"intents/{uuid.uuid4().hex}.json", place, tuple(sorted(digests)), clock)

    def write(self, objects: Objects) -> None:
        """Write it first; nothing that the push has looked at before counts."""
        begun_s = self.clock()
        self.version = objects.send(self.key, self._render("uploading"))
        self.written_s = begun_s

    def renew(self, objects: Objects, *, cas: bool) -> None:
        """Write it again if half its life has nearly passed.

        Raises:
            Voided: More than half has passed, as after a sleep, or it is no longer this push's own version.
        """
        with self.mutex:  # of two threads that renew at once the second would take the first for a pruner
            age_s = self.clock() - self.written_s
            if age_s > LIFE_S / 2:
                raise Voided
            if age_s > LIFE_S / 4:
                self._replace(objects, "uploading", cas=cas)

    def commit(self, objects: Objects, manifest: bytes) -> None:
        """Say, by compare-and-swap, that all blobs are there and this manifest follows: it does not go stale any more.

        Raises:
            Voided: As for `renew`.
        """
        if self.clock() - self.written_s > LIFE_S / 2:
            raise Voided
        self._replace(objects, "committing", cas=True, manifest=manifest)

    def _replace(self, objects: Objects, state: str, *, cas: bool, manifest: bytes | None = None) -> None:
        begun_s = self.clock()
        data = self._render(state, manifest)
        if self.version is None:
            raise Voided
        version = objects.update(self.key, data, self.version) if cas else objects.send(self.key, data)
        if version is None:
            raise Voided
        self.version, self.written_s = version, begun_s

    def _render(self, state: str, manifest: bytes | None = None) -> bytes:
        members: dict[str, object] = {
            "format": "ckstore-remote-intent",
            "version": 1,
            "blobs": list(self.digests),
            # Drawn for each write, so that no two have the same bytes, and at most services the same mark.
            "change": uuid.uuid4().hex,
            "run": self.place.run,
            "step": self.place.step,
            "id": self.place.id,
            "life_s": LIFE_S,
            "state": state,
            "writer": f"ckstore {__version__}",
        }
        if manifest is not None:
            members["manifest"] = manifest.decode("ascii")
        return seal(canonical_json(members))
