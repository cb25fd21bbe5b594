"""The processes that a soak kills at any moment: what each does, over and over, until it dies.

What a checkpoint holds follows from a token that lies in it. Whatever is not as it should be is an exception.
"""

from __future__ import annotations

import random
import time
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import Store
from ckstore.errors import CkstoreError, InUse, NoSuchRef
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.settings.retention import RetentionPolicy
from tests.soak.ledger import Ledger, Place
from tests.support.plans import plan_of

KIB = 2**10
KEEP_LAST = 3
RUN_MOST = 8
SHARED_RUN = "shared"
_MAPPED_AT_ONCE = 6
_TRIES = 40
_LOOKED_AT_MOST = 12
_PAUSE_S = 0.05
_BASE = np.random.default_rng(0).integers(0, 256, 600 * KIB, dtype=np.uint8)
_NEAR = np.random.default_rng(1).standard_normal(60_000, np.float32)
_TOKENS = random.SystemRandom()


def state_of(token: int) -> dict[str, Any]:
    """Return what is saved: a base that all have, bytes that come back, small tensors of which some stay."""
    turn = np.random.default_rng(token % 7).integers(0, 256, 300 * KIB, dtype=np.uint8)
    own = np.random.default_rng(token).integers(0, 256, 40_000, dtype=np.uint8)
    small = [np.full(50, token // 3 if i % 4 else token) for i in range(20)]
    near = _NEAR.copy()  # one in a hundred differs from that of another token: a compaction encodes it
    near[token % 100 :: 100] += token % 1000 + 1
    return {"base": _BASE, "turn": turn, "own": own, "near": near, "small": small, "token": token}


def checksum(loaded: dict[str, Any]) -> int:
    """Return a checksum of all bytes of a state, mapped or not."""
    found = 0
    for array in (loaded["base"], loaded["turn"], loaded["own"], loaded["near"], *loaded["small"]):
        found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
    return found


def token_of(loaded: dict[str, Any], name: str) -> int:
    """Return the token of a state that was loaded; raise if it is not, bit for bit, what the token stands for."""
    token: int = loaded["token"]
    if checksum(loaded) != checksum(state_of(token)):
        raise RuntimeError(f"{name} does not hold the bytes that were saved with the token {token}")
    return token


def check_promised(
    store: Store,
    ledger: Ledger,
    draw: random.Random | None = None,
    run: str | None = None,
    *,
    gone: tuple[type[CkstoreError], ...] = (NoSuchRef,),
    unanswered: tuple[type[CkstoreError], ...] = (),
) -> int:
    """Load every checkpoint that was promised (of one run), while others go on; return how many there were.

    With `draw`, some that it chooses: members that look at all of them are killed before they do anything else, the
    store grows, and the next ones look even longer. `gone` is what the load of one may say that was dropped meanwhile;
    `unanswered` is what it says where a service fails at random, which tells nothing about the checkpoint.

    Raises:
        RuntimeError: One is gone, or holds something else.
    """
    places = [place for place in ledger.read().promised if run in (None, place[0])]
    if draw is not None and len(places) > _LOOKED_AT_MOST:
        places = draw.sample(places, _LOOKED_AT_MOST)
    return sum(_check_place(store, ledger, place, gone, unanswered) for place in places)


def _check_place(
    store: Store,
    ledger: Ledger,
    place: Place,
    gone: tuple[type[CkstoreError], ...],
    unanswered: tuple[type[CkstoreError], ...],
) -> int:
    name = f"{place[0]}@{place[1]}"
    for _ in range(_TRIES):
        since = ledger.read().last_acknowledged(place)
        try:
            token = token_of(store.load(name), name)
        except unanswered:
            ledger.did(unanswered=1)
            return 0
        except gone as error:
            if ledger.read().may_be_gone(place):
                return 0
            is_replaced = isinstance(error, NoSuchRef) or len(ledger.read().tokens(place, since=since)) > 1
            if is_replaced and place in {(info.run, info.step) for info in store.checkpoints(place[0])}:
                time.sleep(_PAUSE_S)  # replaced between two looks at it
                continue
            raise RuntimeError(f"{name} was acknowledged, not dropped, and is gone") from error
        allowed = ledger.read().tokens(place, since=since)
        if token not in allowed:
            raise RuntimeError(f"{name} holds {token}, wanted one of {sorted(allowed)}")
        return 1
    raise RuntimeError(f"{name} could not be loaded in {_TRIES} tries")


def check_warnings(store: Store, but: str = "") -> None:
    """Raise if the store found something that is not whole, which no kill may leave; `but`: a run that was spoilt."""
    found = [warning for warning in store.warnings if not but or f"{but}@" not in warning]
    bad = [warning for warning in found if "damaged" in warning or "incomplete checkpoint" in warning]
    if bad:
        raise RuntimeError(f"the store warns: {bad}")


def _token() -> int:
    """Return a token that no other save has."""
    return _TOKENS.getrandbits(50)


def saver(store: Store, ledger: Ledger, run: str, draw: random.Random) -> Callable[[], None]:
    """Save: the next step of a run of its own, or of one that two share; the newest one again, or another instead.

    It waits while the run has too many, else the savers would outrun those who drop, and nothing would be freed.
    """

    def save(step: int | None, token: int, **how: Any) -> None:
        ledger.trying(run, step, token)
        info = store.save(state_of(token), step=step, run=run, **how)
        ledger.acknowledged(run, info.step, token)

    def act() -> None:
        infos = store.checkpoints(run)
        if len(infos) > RUN_MOST:
            time.sleep(_PAUSE_S)
            return
        token = _token()
        if run == SHARED_RUN:
            save(None, token)
            return
        newest = store.latest(run=run)
        if newest is None or draw.random() < 0.7:
            tags = (f"best-{run}",) if draw.random() < 0.2 else ()
            # A store that was set back can have a greater step than the newest one.
            save(1 + max((info.step for info in infos), default=-1), token, tags=tags)
        elif draw.random() < 0.5:
            save(newest.step, token, if_exists="replace", parent=newest)
        else:
            _same_again(store, ledger, newest)

    return act


def _same_again(store: Store, ledger: Ledger, newest: CheckpointInfo) -> None:
    """Save the newest one again, as it is: that is no error, and it must be as durable as if it were new."""
    token = int(store.load(newest)["token"])
    ledger.trying(newest.run, newest.step, token)
    info = store.save(state_of(token), step=newest.step, run=newest.run)
    ledger.acknowledged(info.run, info.step, token)
    ledger.did(same_again=1)


def collector(store: Store, ledger: Ledger, run: str, draw: random.Random) -> Callable[[], None]:
    """Keep the last three of each run, now and then drop one more, or compact older ones; free what they leave."""
    policy = RetentionPolicy(keep_last=KEEP_LAST)

    def act() -> None:
        plan = plan_of(store, policy)
        if plan.dropped:
            ledger.dropping([(entry.info.run, entry.info.step) for entry in plan.dropped])
            ledger.did(dropped=len(store.prune(plan).dropped))
        infos = store.checkpoints()
        newest = {info.run: info for info in infos}
        older = [info for info in infos if newest[info.run] is not info]
        if len(infos) > 10 and older and draw.random() < 0.2:
            _delete(store, ledger, older[0])
        if draw.random() < 0.3:
            ledger.did(compacted=len(store.compact(keep_newest=1).compacted))
        try:
            report = store.gc()
        except InUse:  # the other collector is at work
            ledger.did(busy=1)
            time.sleep(_PAUSE_S)
            return
        if report.linked_outside:
            raise RuntimeError(f"nothing links to {report.linked_outside}")
        ledger.did(gcs=1, freed=report.freed_count, held=len(report.held), swept=report.swept_stagings)

    return act


def _delete(store: Store, ledger: Ledger, info: CheckpointInfo) -> None:
    ledger.dropping([(info.run, info.step)])
    try:
        store.delete(info)
    except (InUse, NoSuchRef):  # open, tagged, or dropped by the other one
        return
    ledger.did(deleted=1)


def reader(store: Store, ledger: Ledger, run: str, draw: random.Random) -> Callable[[], None]:
    """Map checkpoints and look at them again while others drop them; or keep one open and read it bit by bit."""
    mapped: deque[tuple[str, dict[str, Any], int]] = deque(maxlen=_MAPPED_AT_ONCE)

    def look(info: CheckpointInfo) -> None:
        if draw.random() < 0.3:
            with store.open_checkpoint(info) as opened:
                token = token_of(opened.load(), info.name)
                time.sleep(draw.random() * _PAUSE_S)
                if not np.array_equal(opened["own"], state_of(token)["own"]):
                    raise RuntimeError(f"{info.name} changed while it was open")
            ledger.did(opened=1)
            return
        loaded = store.load(info, mmap=True)
        token = token_of(loaded, info.name)
        mapped.append((info.name, loaded, checksum(state_of(token))))
        ledger.did(mapped=1)

    def act() -> None:
        infos = store.checkpoints()
        check_warnings(store)
        if infos:
            try:
                look(draw.choice(infos))
            except NoSuchRef:  # dropped or replaced since it was listed, and said so before anything was read
                ledger.did(gone=1)
        for name, loaded, wanted in mapped:
            if checksum(loaded) != wanted:
                raise RuntimeError(f"{name} changed while it was mapped")
        ledger.did(looked_again=len(mapped))

    return act


Role = Callable[[Store, Ledger, str, random.Random], Callable[[], None]]
ROLES: tuple[Role, ...] = (*(saver,) * 8, *(collector,) * 2, *(reader,) * 4)
"""Who works at the store: each slot is filled again as soon as its process was killed."""


def live(slot: int, path: Path, ledger: Ledger, seed: int, tell: Callable[[], object]) -> None:
    """Open the store, look whether what was promised is there, and work until killed; `tell` of each thing done."""
    draw = random.Random(seed)
    with Store.open(path) as store:
        check_warnings(store)
        run = SHARED_RUN if slot >= 6 else "abcdef"[slot]
        looked_at = run if slot < 6 else draw.choice(["abcdef"[slot % 6], SHARED_RUN])
        ledger.did(starts=1, checked_at_start=check_promised(store, ledger, draw, looked_at))
        act = ROLES[slot](store, ledger, run, draw)
        while True:
            act()
            tell()
