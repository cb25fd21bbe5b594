"""An intent is an object on the remote. It records the blobs that a push needs, before the push checks the remote.

A pruner keeps these blobs until the intent is stale. It then voids the intent, and the push must start again. Source:
docs/format/remote-v1.md, "intents/" and "Prune".
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ckstore.model.canonical import canonical_json
from ckstore.model.seal import seal
from ckstore.remote.keys import INTENTS, Place
from ckstore.remote.objects import Objects
from ckstore.version import __version__

LIFE_S = 3600
"""A pruner keeps the blobs of an intent for this long after the intent was last written."""


class VoidIntent(Exception):
    """A pruner voided the intent, or the push did not renew it in time. The push starts again with a new intent."""


@dataclass(slots=True)
class Intent:
    """The intent of this process for the checkpoints of one batch."""

    key: str  # key of its object
    places: tuple[Place, ...]  # the checkpoints
    digests: tuple[str, ...]  # all blobs that these checkpoints need
    clock: Callable[[], float]
    version: str | None = None  # version tag of this process's last write, or None before the first write
    written_s: float = 0.0  # time of that write, by `clock`
    has_committed: bool = False  # whether it was committed. A committed intent is not renewed, and never becomes stale
    mutex: threading.Lock = field(default_factory=threading.Lock)  # held while the intent is renewed or committed

    @classmethod
    def of(cls, places: Iterable[Place], digests: Iterable[str], clock: Callable[[], float]) -> Intent:
        """Return a new intent, which is not yet written."""
        return cls(f"{INTENTS}{uuid.uuid4().hex}.json", (*places,), tuple(sorted({*digests})), clock)

    def write(self, objects: Objects) -> None:
        """Write the intent. The push must not rely on any check of the remote before this write."""
        begun_s = self.clock()
        self.version = objects.send(self.key, self._render("uploading"))
        self.written_s = begun_s

    def renew(self, objects: Objects, *, cas: bool) -> None:
        """Write the intent again if a quarter of its life has passed.

        Raises:
            VoidIntent: Another client has changed the intent. Or more than half of its life has passed, for example
                because the machine was suspended.
        """
        # Without the lock, a thread would mistake a renewal by another thread for a change by a pruner.
        with self.mutex:
            if self.has_committed:
                return
            age_s = self.clock() - self.written_s
            if age_s > LIFE_S / 2:
                raise VoidIntent
            if age_s > LIFE_S / 4:
                self._replace(objects, "uploading", cas=cas)

    def commit(self, objects: Objects, manifests: Sequence[bytes]) -> None:
        """Record by compare-and-swap that all blobs are on the remote and that these manifests follow.

        Raises:
            VoidIntent: As in `renew`.
        """
        with self.mutex:
            if self.clock() - self.written_s > LIFE_S / 2:
                raise VoidIntent
            self._replace(objects, "committing", cas=True, manifests=manifests)
            self.has_committed = True

    def _replace(self, objects: Objects, state: str, *, cas: bool, manifests: Sequence[bytes] = ()) -> None:
        begun_s = self.clock()
        data = self._render(state, manifests)
        if self.version is None:
            raise VoidIntent
        version = objects.update(self.key, data, self.version) if cas else objects.send(self.key, data)
        if version is None:
            raise VoidIntent
        self.version, self.written_s = version, begun_s

    def _render(self, state: str, manifests: Sequence[bytes] = ()) -> bytes:
        members: dict[str, object] = {
            "format": "ckstore-remote-intent",
            "version": 1,
            "blobs": list(self.digests),
            # Each write gets a random value, because most services give writes of equal bytes the same version tag.
            "change": uuid.uuid4().hex,
            "checkpoints": [
                {**place._asdict(), **({"manifest": manifests[at].decode("ascii")} if manifests else {})}
                for at, place in enumerate(self.places)
            ],
            "life_s": LIFE_S,
            "state": state,
            "writer": f"ckstore {__version__}",
        }
        return seal(canonical_json(members))
