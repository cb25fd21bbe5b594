"""Random histories of acts on a store, its remotes and a rival there: what the law of pairs asks of two acts, of many.

Every other history has only acts of the law of pairs. The rest also have faults of the remotes, and acts where the
store meets another party. What a fault hurt may be lost there, but every tool must say so.

``python -m tests.pairs.histories [SECONDS] [SEED]`` goes on for so long, and prints each history that breaks the law
with its seed; ``python -m tests.pairs.histories 0 SEED`` tells that one again.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from ckstore import RetentionPolicy, Store
from ckstore.errors import CkstoreError
from ckstore.ops.free import gc
from ckstore.remote import key_lookup
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.remote_opener import named_remote
from ckstore.saver import helper_start
from ckstore.store import context_of
from tests.pairs import two_parties
from tests.pairs.acts import ACTS, as_the_quota_says, connected
from tests.pairs.table import read
from tests.pairs.two_parties import PARTIES
from tests.pairs.world import REMOTE, World, state
from tests.support.coverage import covered

_LEAST, _MOST = 4, 10
_RIVAL = "rival"
_OPEN = {frozenset(pair.split(" and ")) for pair in read().open}


def rival(world: World, store: Store) -> None:
    """Have another store at the same remote keep one checkpoint there by a rule of its own, and prune two days later.

    It may remove what this store pushed, for it has the bytes; what this store let go of has to stay.
    """
    connected(world, store)
    store.push(all=True, remote=REMOTE)
    path = world.folder / "rival"
    with Store.open(path) if path.exists() else Store.init(path, chunk_bytes=2**20) as other:
        if not other.remotes.list():
            other.remotes.add(REMOTE, world.remote)
        other.pull(all=True, remote=REMOTE)
        for run in {one.info.run for one in world.listed()}:
            number = world.next_number()
            other.save(state(number), step=10_000 + number, run=run)
            other.push(f"{run}@latest", REMOTE)
        KeepRemote(context_of(other), named_remote(context_of(other), REMOTE), RetentionPolicy(keep_last=1)).apply()
        now = key_lookup.server_time
        for days in (0, 2):
            with patch.object(
                key_lookup, "server_time", lambda objects, days=days: now(objects) + timedelta(days=days)
            ):
                other.remotes.prune(REMOTE)
    stay = {id for id in world.at_remote if id in world.saved and not world.saved[id].is_local}
    world.removed[REMOTE] |= {one.info.id for one in world.listed()} - stay
    world.at_remote = stay


def history(seed: int) -> list[str]:
    """Return the acts of a history; no two of them that the table has as an open fault."""
    draw = random.Random(seed)
    acts: list[str] = []
    if seed % 2:
        return two_parties.history(draw, _MOST)
    for _ in range(draw.randint(_LEAST, _MOST)):
        name = draw.choice([*sorted(ACTS), "evict", _RIVAL, _RIVAL])
        if not any(pair <= {*acts, name} for pair in _OPEN):
            acts.append(name)
    return acts


def live(folder: Path, acts: list[str], seed: int = 0) -> int:
    """Do the acts by two handles in turn; return how many were refused.

    Raises:
        AssertionError: Something that was acknowledged is lost, the store is not whole, or a tool does not say so.
    """
    world, refused = World.of(folder), 0
    if not PARTIES.keys().isdisjoint(acts):
        return two_parties.live(world, acts, seed)
    for number, name in enumerate(acts):
        try:
            with as_the_quota_says(world):
                (rival if name == _RIVAL else ACTS[name])(world, world.hands[number % 2])
        except (CkstoreError, StopIteration):  # or no checkpoint is left that the act needs
            refused += 1
        world.settle(name)
    world.check()
    return refused


def main(seconds: float, seed: int, *, at_least: int = 1) -> int:
    """Live histories for so many seconds, and so many at least; return how many broke the law."""
    begun_s, count, act_count, refused, wrong = time.monotonic(), 0, 0, 0, 0
    while count < at_least or time.monotonic() - begun_s < seconds:
        acts = history(seed + count)
        folder = Path(tempfile.mkdtemp(prefix="ckstore-history-"))
        try:
            refused += live(folder, acts, seed + count)
        except Exception:
            wrong += 1
            print(f"seed {seed + count}: {' '.join(acts)}\n{traceback.format_exc()}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        count, act_count = count + 1, act_count + len(acts)
    print(covered("histories", f"from seed {seed}", violations=wrong, histories=count, acts=act_count, refused=refused))
    return wrong


if __name__ == "__main__":
    setattr(helper_start, "start", lambda *_: None)  # noqa: B010
    gc._QUIET_S = 0.0
    warnings.simplefilter("ignore")
    numbers = [float(word) for word in sys.argv[1:]]
    sys.exit(bool(main(numbers[0] if numbers else 60.0, int(numbers[1]) if numbers[1:] else 0)))
