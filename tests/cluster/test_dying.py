"""A process or a host dies in the middle of an act on a shared filesystem; the other host goes on.

At each call that changes something the process is killed, or the mount's process dies: it forgets what was not synced,
and its locks are gone. ``CKSTORE_CRASH=full`` tries every call of every act; else one of two.
"""

from __future__ import annotations

import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError
from tests.cluster.acts import ACTS, Seen, cleared, files, seen, state
from tests.cluster.conftest import Stage, copied
from tests.support.requirements import CRASH_FULL, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

_SEED = int(os.environ.get("CKSTORE_CRASH_SEED", "28"))
_MANY = 10**6
_REFUSED = 3
_EVERY = [(act.name, how) for act in ACTS for how in ("kill", "crash") if act.name != "verify"]
_ALWAYS = [("replace", "kill"), ("gc", "crash")]
_POINTS = 1

pytestmark = [
    pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning"),
    pytest.mark.crash,
    pytest.mark.timeout(3600 if CRASH_FULL else 300),
]


@pytest.mark.parametrize("name, how", _EVERY if CRASH_FULL else _ALWAYS)
def test_the_other_host_goes_on(
    name: str, how: str, stages: dict[str, Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root()
    require_fuse()
    stage = stages[name]
    calls = _MANY - Dying(tmp_path / "all", stage, how, monkeypatch).survived_by_two(_MANY)
    points = range(1, calls + 1)
    for point in points if CRASH_FULL else sorted(random.Random(_SEED).sample(points, min(_POINTS, calls))):
        left = Dying(tmp_path / str(point), stage, how, monkeypatch).survived_by_two(point)
        assert left <= 1, f"it did not come to call {point} of {calls}"


class Dying:
    """A store on two hosts, of which the first dies.

    Args:
        place: A folder that is made.
        stage: What the first does.
        how: How it dies; the name of a switch.
        patch: Sets the caches of the hosts.
    """

    def __init__(self, place: Path, stage: Stage, how: str, patch: pytest.MonkeyPatch) -> None:
        self._stage = stage
        self._switch = place / "switches" / how
        self._place = place
        self._patch = patch
        for folder in ("real", "switches"):
            (place / folder).mkdir(parents=True)
        copied(stage.store, place / "real/store")
        (place / "real/outside").mkdir()
        files(place / "real")

    def survived_by_two(self, point: int) -> int:
        """Let the first die at that call, and look at what the other makes of it; return what is left of the calls."""
        with ExitStack() as mounted:
            one, two = (
                mounted.enter_context(
                    shared_folder(self._place / "real", self._place / name, locks=True, switches=switches)
                )
                for name, switches in (("one", self._place / "switches"), ("two", None))
            )
            died = self._dies(one, point)
            left = int(self._switch.read_text())
            self._switch.unlink()
            self._patch.setenv("XDG_CACHE_HOME", str(self._place / "cache two"))
            with Store.open(two / "store") as other:
                self._goes_on(other, two / "outside", finished=not died)
        check_links(self._place / "real/store")
        check_blobs(self._place / "real/store")
        return left

    def _dies(self, one: Path, point: int) -> bool:
        """Carry out the act in a process of its own; return whether it did not come to its end."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.environ["XDG_CACHE_HOME"] = str(self._place / "cache one")
                store = Store.open(one / "store")
                self._switch.write_text(str(point))
                self._stage.act.do(store, one / "outside")
                status = 0
            except CkstoreError:  # of a server that is gone
                status = _REFUSED
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, _REFUSED if self._switch.name == "crash" else -signal.SIGKILL)
        return code != 0

    def _goes_on(self, store: Store, outside: Path, *, finished: bool) -> None:
        before, after = (without_outside(stage) for stage in (self._stage.before, self._stage.after))
        now = without_outside(seen(store, outside))
        assert now in ((after,) if finished else (before, after))
        names = sorted(os.listdir(store.path / "staging"))
        store.config.grace_s = 3600
        store.gc()
        assert sorted(os.listdir(store.path / "staging")) == names  # its saver may live
        store.config.grace_s = 0
        store.gc()  # what died under the hidden name of its step goes to trash
        cleared(store)
        assert not list(store.path.glob("checkpoints/*/.*"))
        now = without_outside(seen(store, outside))
        assert now in ((after,) if finished else (before, after))
        if now == before:  # as of what only writes elsewhere, too
            (outside.parent / "again").mkdir()
            self._stage.act.do(store, outside.parent / "again")
            assert without_outside(seen(store, outside)) == after
        store.save(state(77), step=77)
        assert store.verify().ok


def without_outside(found: Seen) -> Seen:
    return {key: value for key, value in found.items() if key != "outside"}
