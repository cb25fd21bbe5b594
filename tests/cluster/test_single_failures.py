"""Each call of each act on a shared filesystem fails once: the act is done, or fails and the next one does it.

The server says so before it did what it was asked, or after that, as when its answer is lost. A save, replace and
commit that failed changed nothing, or say that they may have. The locks of the filesystem are
those of the host; where locks of the cluster are what an act uses, it has these too.
``CKSTORE_CRASH=full`` tries every call, of those that only look 40 of each act; else two of four acts. The counts are
printed.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError
from tests.cluster.acts import ACTS, Seen, cleared, files, made_store, seen
from tests.cluster.conftest import Stage, copied
from tests.faults.harness import Tally, evenly, every_point
from tests.support.coverage import covered
from tests.support.descriptors import open_below
from tests.support.faulty_folder import CALLS, Failing
from tests.support.memory import memory_folder
from tests.support.requirements import CRASH_FULL, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

_SEED = int(os.environ.get("CKSTORE_CRASH_SEED", "28"))
_MANY = 10**6
_LOOKS = 40
"""An act looks at hundreds of names, and so many of these are tried."""
_ACTS_SAMPLED = 1
_SAMPLED = 2

pytestmark = [
    pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning"),
    pytest.mark.crash,
    pytest.mark.timeout(3600 if CRASH_FULL else 300),
]


@dataclass(frozen=True)
class Way:
    """One way in which calls fail; the errors are tried in turn. Linux asks once more by itself after ESTALE."""

    calls: tuple[str, ...]
    errors: tuple[int, ...]
    how: Literal["before", "after", "short"] = "before"
    times: int = 1


WAYS = {
    "changing": Way(CALLS["changing"], (errno.EIO, errno.EDQUOT, errno.EINTR)),
    "changing, stale": Way(CALLS["changing"], (errno.ESTALE,), times=2),
    "changing, answer lost": Way(CALLS["changing"], (errno.EIO,), "after"),
    "opening": Way(CALLS["opening"], (errno.EIO,)),
    "opening, stale": Way(CALLS["opening"], (errno.ESTALE,), times=2),
    "reading": Way(CALLS["reading"], (errno.EIO, errno.ESTALE)),
    "short": Way(CALLS["writing"], (0,), "short"),
    "closing": Way(CALLS["closing"], (errno.EDQUOT,)),
    "looking": Way(CALLS["looking"], (errno.EIO,)),
    "looking, stale": Way(CALLS["looking"], (errno.ESTALE,), times=2),
    "locking": Way(CALLS["locking"], (errno.ENOLCK,)),
}
NAMES = ("init", "open", *(act.name for act in ACTS))
CERTAIN = ("save", "replace", "commit")
"""After an error of another act it is unknown whether it happened."""


@dataclass(frozen=True)
class Kind:
    """A kind of filesystem, with the acts and the ways to fail that are tried there."""

    locks: bool
    ways: tuple[str, ...] = tuple(way for way in WAYS if way != "locking")
    names: tuple[str, ...] = NAMES


KINDS = {
    "host": Kind(locks=False),
    "locks of the cluster": Kind(locks=True, ways=("locking",)),
    "cluster": Kind(locks=True, names=("save", "replace", "delete")),
}
_EVERY = [(kind, name) for kind, there in KINDS.items() for name in there.names]
_ALWAYS = [("cluster", "replace")]
_DRAWN = random.Random(_SEED).sample([one for one in _EVERY if one not in _ALWAYS], _ACTS_SAMPLED)


@dataclass(frozen=True)
class Mount:
    """A filesystem with a folder for each case, below one in memory."""

    kind: Kind
    place: Path
    numbers: Iterator[int]


@pytest.fixture(scope="module")
def mount(request: pytest.FixtureRequest) -> Iterator[Mount]:
    require_root()
    require_fuse()
    kind = KINDS[request.param]
    place = Path(tempfile.mkdtemp(prefix="ckstore-shared-", dir=memory_folder()))
    try:
        for folder in ("real", "switches"):
            (place / folder).mkdir()
        with shared_folder(place / "real", place / "shown", locks=kind.locks, switches=place / "switches"):
            yield Mount(kind, place, count(1))
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("mount, name", _EVERY if CRASH_FULL else _ALWAYS + _DRAWN, indirect=["mount"])
def test_a_call_that_fails_does_no_harm(
    mount: Mount,
    stages: dict[str, Stage],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def run(way: str, at: int) -> dict[str, Any]:
        case = Case(mount, name, stages)
        monkeypatch.setenv("XDG_CACHE_HOME", str(case.cache))
        return case.run(WAYS[way], at)

    seed = None if CRASH_FULL else _SEED
    drawing = random.Random(f"{seed} {name}")
    violations: list[str] = []
    for way in mount.kind.ways if seed is None else [drawing.choice(mount.kind.ways)]:
        tally = Tally(f"{name}, {way}")
        if seed is None and "looking" in way:
            for at in evenly(range(1, _MANY - run(way, _MANY)["left"] + 1), _LOOKS):
                tally.add(at, run(way, at))
        elif seed is None:
            every_point(tally, partial(run, way))
        else:
            calls = _MANY - run(way, _MANY)["left"]
            for at in drawing.sample(range(1, calls + 1), min(calls, _SAMPLED)):
                tally.add(at, run(way, at))
        counts = {"points": tally.points, "refused": tally.refused, "survived": tally.survived}
        told = covered("shared filesystems", tally.what, violations=len(tally.violations), seed=seed, **counts)
        with capfd.disabled():
            print(f"\n{told}", file=sys.stderr, flush=True)
        violations += tally.violations

    assert not violations, "\n\n".join(violations[:9])


class Case:
    """A store on that filesystem, and one act in it.

    Attributes:
        cache: For the catalog of this host.
    """

    def __init__(self, mount: Mount, name: str, stages: dict[str, Stage]) -> None:
        folder = str(next(mount.numbers))
        self.cache = mount.place / f"cache-{folder}"
        self._name = name
        self._switches = mount.place / "switches"
        self._real, self._shown = mount.place / "real" / folder, mount.place / "shown" / folder
        self._outside = self._shown / "outside"
        self._stage = stages[name if name in stages else ACTS[0].name]
        self._opens = name not in stages
        self._store: Store | None = None
        self._real.mkdir()
        (self._real / "outside").mkdir()
        files(self._real)
        if name != "init":
            copied(self._stage.store, self._real / "store")

    def run(self, way: Way, at: int) -> dict[str, Any]:
        """Have the call of that number fail; return what came of it, for a `Tally`."""
        if not self._opens:
            self._store = Store.open(self._shown / "store")
        Failing(way.calls, at, way.errors[at % len(way.errors)], way.how, way.times).put(self._switches)
        error = self._attempt()
        left = Failing.take(self._switches)
        wrong = []
        if error is not None:
            wrong += self._after(error)
        if self._store is not None:
            self._store.close()
        wrong += [f"the process left open: {path}" for path in open_below(self._shown).values()]
        wrong += self._found_by_the_next()
        if not wrong:
            shutil.rmtree(self._real)
            shutil.rmtree(self.cache, ignore_errors=True)
        told = "" if error is None else f"{type(error).__name__}: {error}"
        return {"left": left, "hits": left < 1, "error": told, "violations": wrong}

    @property
    def _begun(self) -> Seen:
        return {**self._stage.before, "outside": {}}

    @property
    def _done(self) -> Seen:
        if self._opens:
            return self._begun
        before, after = (stage["outside"] for stage in (self._stage.before, self._stage.after))
        if not (isinstance(before, dict) and isinstance(after, dict)):
            raise TypeError("what is outside is a dict of files")
        return {**self._stage.after, "outside": dict(after.items() - before.items())}

    def _attempt(self) -> Exception | None:
        try:
            if self._name == "init":
                self._store = made_store(self._shown / "store")
            elif self._store is None:
                self._store = Store.open(self._shown / "store")
            if not self._opens:
                self._stage.act.do(self._store, self._outside)
        except Exception as error:
            return error
        return None

    def _after(self, error: Exception) -> list[str]:
        """Look at what is there after an error, and do what failed."""
        wrong = []
        if not isinstance(error, CkstoreError):
            wrong.append("not a CkstoreError: " + "".join(traceback.format_exception(error)))
        if self._store is not None:
            now = seen(self._store, self._outside)
            certain = self._name in CERTAIN and "may or may not" not in str(error)
            if now == self._done and self._begun != self._done and not certain:
                return wrong
            wrong += self._differs("failed", now, self._begun)
        again = self._attempt()
        if again is not None and self._store is not None and "open the store again" in str(error) + str(again):
            self._store.close()
            self._store = None
            again = self._attempt()
        if again is not None:
            wrong.append("the same process cannot try again: " + "".join(traceback.format_exception(again)))
        return wrong

    def _found_by_the_next(self) -> list[str]:
        try:
            with Store.open(self._shown / "store") as store:
                cleared(store)
            with Store.open(self._real / "store", readonly=True) as store:  # without the filesystem, which takes time
                wrong = self._differs("opened again", seen(store, self._real / "outside"), self._done)
            check_links(self._real / "store")
            check_blobs(self._real / "store")
        except Exception as error:
            return ["opened again: " + "".join(traceback.format_exception(error))]
        return wrong

    def _differs(self, when: str, now: Seen, wanted: Seen) -> list[str]:
        return [
            f"{when}: {key} is {now.get(key)!s:.300} instead of {wanted.get(key)!s:.300}"
            for key in {**now, **wanted}
            if now.get(key) != wanted.get(key)
        ]
