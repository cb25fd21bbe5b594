"""What saves did: how long the parts of one took, and the sums of all saves of one open store."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict
from typing import Literal

from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.reports.metrics import Metric
from ckstore.model.times import time_of_text

_mutex = threading.RLock()  # a signal handler may come while this thread holds it


def _renew_in_child() -> None:
    global _mutex  # noqa: PLW0603
    _mutex = threading.RLock()  # another thread of the parent may hold the old one for ever


os.register_at_fork(after_in_child=_renew_in_child)


class Laps:
    """Seconds of each part of a save; a part ends where the next begins, and can come again."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # part -> seconds
        self._begun = time.monotonic()

    def end(self, part: str) -> None:
        """The part that was under way has ended."""
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._begun
        self._begun = now


class SaveTotals:
    """Counts the saves of one open store. Its methods may be called from several threads."""

    def __init__(self) -> None:
        self._outcomes = dict.fromkeys(("saved", "failed", "skipped"), 0)
        self._bytes = dict.fromkeys(("logical", "new", "reused", "kept"), 0)
        self._blobs = dict.fromkeys(("written", "reused"), 0)
        self._seconds: dict[str, float] = {}
        self._last: dict[str, CheckpointInfo] = {}

    def saved(self, info: CheckpointInfo) -> None:
        """A save has ended well."""
        with _mutex:
            self._outcomes["saved"] += 1
            self._last[info.run] = info
            for kind in ("logical", "new", "reused"):
                self._bytes[kind] += getattr(info, f"{kind}_bytes")
            if info.counters is None:
                return
            self._bytes["kept"] += info.counters.kept_bytes
            self._blobs["written"] += info.counters.written_count
            self._blobs["reused"] += info.counters.reused_count
            for name, value in asdict(info.counters).items():
                if name.endswith("_s"):
                    part = name.removesuffix("_s")
                    self._seconds[part] = self._seconds.get(part, 0.0) + value

    def not_saved(self, outcome: Literal["failed", "skipped"]) -> None:
        """A save has ended otherwise."""
        with _mutex:
            self._outcomes[outcome] += 1

    def metrics(self) -> tuple[Metric, ...]:
        """Return all of it."""
        with _mutex:
            last = {run: self._last[run] for run in sorted(self._last)}
            made = {run: time_of_text(info.created).timestamp() for run, info in last.items()}
            steps = {run: info.step for run, info in last.items()}
            return (
                Metric("ckstore_saves", "counter", "Saves, by how they ended.", "outcome", dict(self._outcomes)),
                Metric("ckstore_save_bytes", "counter", "Bytes of saved checkpoints.", "kind", dict(self._bytes)),
                Metric("ckstore_save_blobs", "counter", "Blobs of saved checkpoints.", "kind", dict(self._blobs)),
                Metric(
                    "ckstore_save_seconds", "counter", "Time of saves, by their parts.", "part", dict(self._seconds)
                ),
                Metric("ckstore_last_saved_step", "gauge", "Step of the last save.", "run", steps),
                Metric("ckstore_last_saved_timestamp_seconds", "gauge", "When that was made.", "run", made),
            )
