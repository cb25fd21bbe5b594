"""Two pushers and a pruner on one remote, behind failing proxies, killed and restarted until the time is up."""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ckstore import CkstoreError, NoSuchRef, Store
from ckstore.remote import intents, keys
from ckstore.remote.keys import Place
from ckstore.remote.push_plan import place_of
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.remote import laws
from tests.remote.laws import REMOTE, Faults
from tests.support.s3_proxy import faulty_proxy
from tests.support.s3_server import Service

_FAULTY = 0.03
_REQUESTS = 300
"""A client is killed, or its service dies, at one of so many requests."""
_LOOK_S = 0.5
_LIFE_S, _GRACE_S = 60, 1.0
"""An intent lives as long as the format allows at least, so that pushes that were killed are found within the time."""
_LIVE = 8


def state(run: str, step: int) -> dict[str, bytes]:
    """Return the state to save. Both pushers save some of it, repeatedly."""
    return {"own": f"{run}@{step}".encode() * 300, "shared": bytes([step % 5]) * 3000, "run": run.encode() * 2000}


def push_on(path: Path, run: str, direct: Target, told: Connection, seed: int) -> None:
    """Save, push, evict and drop forever; print acknowledged checkpoints, and those about to be dropped."""
    intents.LIFE_S = _LIFE_S
    drawn = random.Random(seed)
    store, objects = Store.open(path, run=run), ServiceObjects(direct)
    while True:
        newest = store.latest(run)
        step = 0 if newest is None else newest.step + 1
        info = store.save(state(run, step), step=step)
        if laws.acknowledged(lambda step=step: store.push(step, REMOTE)):  # type: ignore[misc]
            told.send(("pushed", tuple(place_of(info))))
        here = store.checkpoints(run)
        with suppress(CkstoreError):
            if drawn.random() < 0.4:
                store.evict(drawn.choice(here), REMOTE)
            if len(here) > _LIVE:
                # Dropped there only when its bytes are here again, and here only when it is away from there.
                with suppress(NoSuchRef):  # its push was lost, or this was killed just after it was dropped there
                    store.pull(here[0].id, REMOTE)
                told.send(("dropping", tuple(place_of(here[0]))))
                laws.drop(objects, place_of(here[0]))
                store.delete(here[0])


def prune_on(target: Target) -> None:
    """Prune forever."""
    while True:
        with suppress(CkstoreError):
            laws.prune(ServiceObjects(target), grace_s=_GRACE_S)


@dataclass
class Client:
    """A client process and its output.

    Attributes:
        job, arguments: The function that it runs.
        faults: The faults of its proxy.
    """

    job: laws.Job
    arguments: tuple[Any, ...]
    faults: Faults
    drawn: random.Random
    speaks: bool = True
    pushed: set[Place] = field(default_factory=set)
    dropping: set[Place] = field(default_factory=set)
    begins: int = 0
    _process: Any = None
    _told: Connection | None = None

    def go_on(self) -> None:
        """Start the client unless it runs, and read its output."""
        self.hear()
        if self._process is not None and self._process.is_alive():
            return
        if self._process is not None:
            # It ends by a kill alone: all that fails on the way is an error of ckstore.
            assert self._process.exitcode == -9, f"{self.job.__name__} ended by itself: {self._process.exitcode}"
            self.hear()
        self.begins += 1
        at, down = self.drawn.randrange(1, _REQUESTS), self.drawn.randrange(1, 2 * _REQUESTS)
        self.faults.begin(kill_at=at, down_at=down)
        more: tuple[Any, ...] = ()
        if self.speaks:
            self._told, theirs = multiprocessing.Pipe(duplex=False)
            more = (theirs, self.drawn.randrange(2**32))
        self._process = laws.begun(self.job, *self.arguments, *more)
        self.faults.pid = self._process.pid

    def hear(self) -> None:
        """Read the output of the client."""
        with suppress(EOFError, OSError):
            while self._told is not None and self._told.poll():
                what, place = self._told.recv()
                (self.pushed if what == "pushed" else self.dropping).add(Place(*place))

    def stop(self) -> None:
        """Kill the client."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self.hear()
        self.faults.end()


def run_clients(folder: Path, service: Service, *, seconds: float, seed: int) -> dict[str, int]:
    """Run the clients for a while; return the operations that were tried."""
    drawn = random.Random(seed)
    direct = service.target("run")
    objects = ServiceObjects(direct)
    clients: list[Client] = []
    looks = 0
    with ExitStack() as opened:
        for at in range(3):
            proxy = opened.enter_context(faulty_proxy(service.port))
            target = service.target("run", proxy.port)
            faults = Faults(proxy, random.Random(drawn.random()), _FAULTY)
            if at == 2:
                clients.append(Client(prune_on, (target,), faults, drawn, speaks=False))
                continue
            path, run = folder / f"store-{at}", f"run-{at}"
            with Store.init(path, chunk_bytes=2**20) as store:
                store.remotes.add(REMOTE, target.address, endpoint=target.endpoint)
            clients.append(Client(push_on, (path, run, direct), faults, drawn))
        end_s = time.monotonic() + seconds
        try:
            # A pusher has pushed at least once, however short and slow it is.
            while time.monotonic() < end_s or not all(client.pushed for client in clients[:2]):
                for client in clients:
                    client.go_on()
                time.sleep(_LOOK_S)
                _look(objects, clients)
                looks += 1
        finally:
            for client in clients:
                client.stop()
        _look(objects, clients)
        for at in range(2):
            with Store.open(folder / f"store-{at}") as store:
                store.remotes.prune(REMOTE)  # ends the claims of pulls that were killed
        laws.check_no_orphan_outlives_two_graces(objects)
        there = laws.listed_whole(objects)
        for at in range(2):
            _check_loads(folder / f"store-{at}", f"run-{at}")
        with Store.init(folder / "other") as other:
            other.remotes.add(REMOTE, direct.address, endpoint=direct.endpoint)
            other.pull(remote=REMOTE, all=True)
            assert other.verify().ok
            assert {place_of(info) for info in other.checkpoints()} == there.keys()
    return {
        "pushed": sum(len(client.pushed) for client in clients),
        "dropped": sum(len(client.dropping) for client in clients),
        "kills": sum(client.faults.kills for client in clients),
        "deaths": sum(client.faults.deaths for client in clients),
        "faults": sum(client.faults.failed for client in clients),
        "requests": sum(len(client.faults.proxy.seen) for client in clients),
        "burnt": sum(name.number > 0 for one in objects.list(keys.BLOBS) if (name := keys.blob_in(one.key))),
        "looks": looks,
    }


def _look(objects: ServiceObjects, clients: list[Client]) -> None:
    for client in clients:
        client.hear()
    pushed = set[Place]().union(*(client.pushed for client in clients))
    listed = laws.listed_whole(objects).keys()
    for client in clients:
        client.hear()
    missing = pushed - listed - set[Place]().union(*(client.dropping for client in clients))
    assert not missing, f"acknowledged, and no longer there: {missing}"


def _check_loads(path: Path, run: str) -> None:
    """Check that every checkpoint of a store, evicted or not, reads as it was saved."""
    with Store.open(path) as store:
        for info in store.checkpoints(run):
            assert store.load(info) == state(run, info.step), f"{info.name} is another one"
