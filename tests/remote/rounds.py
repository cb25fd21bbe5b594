"""Rounds of pushes, evictions and prunes while requests and responses are lost and clients and the service die."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ckstore import Store
from ckstore.remote.keys import Place
from ckstore.remote.push_plan import place_of
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from ckstore.remote.source import ObjectSource
from tests.remote import laws
from tests.remote.laws import REMOTE, Faults
from tests.support.s3_proxy import Proxy

_FAULTY = 0.15
_STEPS = 4
_REQUESTS = 24
"""About as many as a push makes; a client or the service dies at one of them."""
_ENDS = ["kill"] * 3 + ["death"] * 2 + [""] * 5
"""How ten acts end, in another order each time, so that the few of a short run have some of each."""
_LIVE = 12
"""So many checkpoints are left at the remote: a round looks at all of them."""


def run_rounds(
    folder: Path, direct: Target, proxied: Target, proxy: Proxy, *, rounds: int, seed: int, kills: bool, deltas: bool
) -> dict[str, int]:
    """Push, evict, drop and prune through a failing proxy; return the operations that were tried."""
    drawn = random.Random(seed)
    store = Store.init(folder / "store", chunk_bytes=2**20)
    store.config.push_deltas = deltas
    store.remotes.add(REMOTE, proxied.address, endpoint=proxied.endpoint)
    x = bytearray(drawn.randbytes(20_000))
    abilities = store.remotes.get(REMOTE).abilities
    objects, far = ServiceObjects(direct, abilities), ServiceObjects(proxied, abilities)
    faults = Faults(proxy, random.Random(seed), _FAULTY)
    states: dict[int, dict[str, bytes]] = {}
    acknowledged: dict[int, Place] = {}
    evicted: set[int] = set()
    ends: list[str] = []
    lost = 0

    def attempt(what: str, step: int = 0) -> bool:
        """Run it in this process, or in one that may be killed in the middle. The service may also die."""
        if not ends:
            ends.extend(drawn.sample(_ENDS, len(_ENDS)) if kills else [""])
        end, at = ends.pop(), drawn.randrange(1, _REQUESTS)
        if end == "kill":
            at = at if faults.kills else 1  # nearly every act gets there: one is killed in any run
            jobs: dict[str, tuple[laws.Job, tuple[object, ...]]] = {
                "push": (laws.pushing, (store.path, str(step))),
                "evict": (laws.evicting, (store.path, [str(step)])),
                "prune": (laws.pruning_once, (proxied, abilities)),
            }
            job, arguments = jobs[what]
            return laws.in_child(job, *arguments, faults=faults, kill_at=at)
        faults.begin(down_at=0 if not end else at if faults.deaths else 1)
        acts: dict[str, Callable[[], object]] = {
            "push": partial(store.push, step, REMOTE),
            "evict": partial(store.evict, [step], REMOTE),
            "prune": partial(laws.prune, far, grace_s=0),
        }
        return laws.acknowledged(acts[what])

    for step in range(rounds):
        for at in drawn.sample(range(len(x)), 100):
            x[at] = (x[at] + 1) % 256
        states[step] = {"x": bytes(x), "y": bytes([step % _STEPS]) * 3000}
        info = store.save(states[step], step=step)
        if attempt("push", step):
            acknowledged[step] = place_of(info)
        else:
            lost += 1
        if acknowledged and drawn.random() < 0.5:
            attempt("evict", one := drawn.choice([*acknowledged]))
            faults.end()
            if store.info(one).elsewhere:
                evicted.add(one)
        attempt("prune")
        faults.end()
        for old in [*acknowledged][: max(0, len(acknowledged) - _LIVE)]:
            # What was let go here is wanted there; of the rest the blobs become orphans.
            if old in evicted:
                store.pull(old, REMOTE)
                evicted.remove(old)
            laws.drop(objects, acknowledged.pop(old))
        assert {*acknowledged.values()} <= laws.listed_whole(objects).keys()
        _reads(store, drawn.choice([*states]), states)
    laws.check_no_orphan_outlives_two_graces(objects)

    store.push(remote=REMOTE, all=True)
    other = Store.init(folder / "other")
    other.remotes.add(REMOTE, direct.address, endpoint=direct.endpoint)
    other.pull(all=True)
    assert other.verify().ok
    for step in states:
        _reads(store, step, states)
        _reads(other, step, states)
    encoded = sum(not ObjectSource(objects, REMOTE).form(place).is_plain for place in acknowledged.values())
    return {
        "rounds": rounds,
        "encoded": encoded,
        "kills": faults.kills,
        "deaths": faults.deaths,
        "faults": faults.failed,
        "refused": lost,
    }


def _reads(store: Store, step: int, states: dict[int, dict[str, bytes]]) -> None:
    assert store.load(step) == states[step], f"step {step} is another one"
