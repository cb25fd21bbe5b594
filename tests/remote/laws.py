"""The laws of a remote, checked only by its objects, and processes that use it and are killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from ckstore import CkstoreError, Store
from ckstore.model.digest import ALGORITHMS
from ckstore.model.manifest.parse import parse_manifest
from ckstore.remote import key_lookup, keys
from ckstore.remote.keys import Place
from ckstore.remote.objects import Remote
from ckstore.remote.pruning import prune as pruning
from ckstore.remote.service.abilities import Abilities
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from ckstore.remote.source import ObjectSource, RemovedCheckpoint
from tests.support.s3_proxy import FAULTS, Fault, Proxy

ALGORITHM = ALGORITHMS["xxh3_128"]
REMOTE = "cold"
DAY_S = 86_400.0
_ENDS_S = 300.0
_DOWN_S = 0.2

# The processes are forked by one that has imported all and never used the engine, which no fork survives.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.remote.laws", "obstore.store"])


def listed_whole(objects: ServiceObjects) -> dict[Place, set[str]]:
    """Return the listed checkpoints of a remote with their digests, after checking that it has every blob of them.

    Raises:
        AssertionError: A checkpoint is incomplete.
    """
    source, found = ObjectSource(objects, "remote"), dict[Place, set[str]]()
    places = source.places()
    there = {name.digest for one in objects.list(keys.BLOBS) if (name := keys.blob_in(one.key)) is not None}
    for place in places:
        data = source.manifest(place)
        if data is None:  # it was dropped meanwhile
            continue
        plain = partial(source.plain, place)
        try:
            manifest, _ = parse_manifest(data, where=place.name, hash_prefix="xxh3", plain=plain)
        except RemovedCheckpoint:
            continue
        digests = {file.digest for file in manifest.stored}
        missing = [digest for digest in digests - there if not _is_there(objects, digest)]
        # Of a checkpoint that was dropped since it was listed the blobs may be gone.
        if missing and place in source.places(f"{place.run}/{place.step}/"):
            raise AssertionError(f"{place.name} is listed, and {missing} are missing")
        found[place] = digests
    return found


def _is_there(objects: ServiceObjects, digest: str) -> bool:
    return any(keys.blob_in(one.key) is not None for one in objects.list(keys.blob(digest)))


def prune(objects: ServiceObjects, *, grace_s: float, after_s: float = 0.0) -> None:
    """Prune a remote, as if it were `after_s` later by the server's clock."""
    now = key_lookup.server_time
    key_lookup.server_time = lambda objects: now(objects) + timedelta(seconds=after_s)
    try:
        pruning.prune(Remote(REMOTE, objects), ALGORITHM, grace_s=grace_s)
    finally:
        key_lookup.server_time = now


def check_no_orphan_outlives_two_graces(objects: ServiceObjects) -> None:
    """Prune twice, each after a grace period without clients, and check that no unreferenced blob is left.

    Raises:
        AssertionError: An unreferenced blob is left.
    """
    # A push that was killed is taken for dead after its intent's life, which is less than a day.
    for days in (2, 3):
        prune(objects, grace_s=DAY_S, after_s=days * DAY_S)
    named = set[str]().union(*listed_whole(objects).values())
    there = {name.digest for one in objects.list(keys.BLOBS) if (name := keys.blob_in(one.key)) is not None}
    assert there == named, f"{there - named} are left, {named - there} are missing"
    assert not [one.key for one in objects.list(keys.INTENTS)]
    assert not [one.key for one in objects.list("probe/")]
    assert not ObjectSource(objects, "remote").listed()[1]


def drop(objects: ServiceObjects, place: Place) -> None:
    """Remove a checkpoint from a remote, as docs/format/remote-v1.md has it."""
    objects.put(place.dropped, b"{}")
    objects.delete([place.manifest, place.plain, place.annotations])


@dataclass
class Faults:
    """The faults of the requests of one proxy, and the death of the client or of the service.

    Attributes:
        drawn: The random generator.
        share: The share of requests that fail.
        kill_at: The number of the request, counted from `begin`, at which the client is killed. 0 for never.
        down_at: The number of the request at which the service dies and is unavailable for a moment.
        pid: The process id of the client. 0 if it is not known yet.
    """

    proxy: Proxy
    drawn: random.Random
    share: float
    kill_at: int = 0
    down_at: int = 0
    pid: int = 0
    kills: int = 0
    deaths: int = 0
    failed: int = 0
    _seen: int = 0
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, *, kill_at: int = 0, down_at: int = 0) -> None:
        """Start counting requests."""
        with self._mutex:
            self.kill_at, self.down_at, self.pid, self._seen = kill_at, down_at, 0, 0
            self.proxy.fault = self._next

    def end(self) -> None:
        """Stop injecting faults."""
        with self._mutex:
            self.proxy.fault = lambda _line: ""

    def _next(self, _line: str) -> Fault:
        with self._mutex:
            self._seen += 1
            if self.pid and self._seen == self.kill_at:
                self.kills += 1
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            if self._seen == self.down_at:
                self.deaths += 1
                self.proxy.die(_DOWN_S)
                return "drop"
            if self.drawn.random() < self.share:
                self.failed += 1
                return self.drawn.choice(FAULTS)
            return ""


Job = Callable[..., None]


def begun(job: Job, *arguments: Any) -> Any:
    """Start a job in a new process, and return the process."""
    process = _FORKS.Process(target=job, args=arguments, daemon=True)
    process.start()
    return process


def in_child(job: Job, *arguments: Any, faults: Faults, kill_at: int) -> bool:
    """Run a job in another process that is killed at a given request; return whether it succeeded."""
    faults.begin(kill_at=kill_at)
    process = begun(job, *arguments)
    faults.pid = process.pid or 0
    process.join(_ENDS_S)
    assert process.exitcode is not None, "it hangs"
    faults.begin()
    return bool(process.exitcode == 0)


def stop_forks() -> None:
    """End the process that forks."""
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def pushing(path: Path, ref: str) -> None:
    """Push a checkpoint; the process fails if the push does."""
    _ended(lambda: Store.open(path).push(ref, REMOTE))


def evicting(path: Path, refs: Iterable[str]) -> None:
    """Evict checkpoints."""
    _ended(lambda: Store.open(path).evict([*refs], REMOTE))


def pruning_once(target: Target, abilities: Abilities | None) -> None:
    """Prune a remote once, without a grace."""
    _ended(lambda: prune(ServiceObjects(target, abilities), grace_s=0))


def _ended(act: Callable[[], object]) -> None:
    raise SystemExit(0 if acknowledged(act) else 1)


def acknowledged(act: Callable[[], object]) -> bool:
    """Run an operation that may fail; return whether it was acknowledged."""
    try:
        act()
    except CkstoreError:
        return False
    return True
