"""Keeps a crowd at work and kills its members at random: ``python -m tests.soak.nursery STORE LEDGER SECONDS SEED``.

It has everything imported and no store open, so a member is one fork. It prints one line of JSON: how many it killed,
and what went wrong in members that ended by themselves, of which none must.
"""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path

from ckstore.ops.free import gc_plan, retain
from ckstore.ops.read import load
from ckstore.ops.refs import labels, latest_valid
from ckstore.ops.save import commit, save
from ckstore.ops.verify import verify
from tests.soak.doomed import ROLES, collector, live
from tests.soak.ledger import Ledger

_IMPORTED = (commit, gc_plan, latest_valid, load, retain, save, labels, verify)
_ACTS_MOST = 24
_WAIT_MOST_S = 10.0
_AIM_MOST_S = 0.05
_COLLECTOR_LIVES = 8


class Nursery:
    """The crowd at one store.

    Attributes:
        kills: How many members were killed.
        violations: What those said that ended by themselves.
    """

    def __init__(self, path: Path, ledger: Ledger, seed: int) -> None:
        self.kills = 0
        self.violations: list[str] = []
        self._path = path
        self._ledger = ledger
        self._draw = random.Random(seed)
        self._slots: dict[int, int] = {}
        self._acts, self._told = os.pipe()
        self._said = ledger.path.with_suffix(".said")

    def run(self, seconds: float) -> None:
        """Keep the crowd at work for so long, then kill all of it."""
        deadline = time.monotonic() + seconds
        for slot in range(len(ROLES)):
            self._start(slot)
        while time.monotonic() < deadline and not self.violations:
            self._wait_for_acts(self._draw.randrange(_ACTS_MOST), deadline)
            time.sleep(self._draw.random() * _AIM_MOST_S)
            self._bury()
            pid, slot = self._victim()
            os.kill(pid, signal.SIGKILL)
            self._bury(pid)
            self._start(slot)
        for pid in list(self._slots):
            os.kill(pid, signal.SIGKILL)
            self._bury(pid)

    def _victim(self) -> tuple[int, int]:
        """Return who is next. One act of a collector is long: it is killed more rarely, else it would free nothing."""
        members = list(self._slots.items())
        weights = [1 if ROLES[slot] is collector else _COLLECTOR_LIVES for _, slot in members]
        return self._draw.choices(members, weights)[0]

    def _wait_for_acts(self, wanted: int, deadline: float) -> None:
        """Let the crowd do something between two kills, however slow the machine is."""
        late = min(deadline, time.monotonic() + _WAIT_MOST_S)
        while wanted > 0 and (left := late - time.monotonic()) > 0:
            ready, _, _ = select.select([self._acts], [], [], left)
            if ready:
                wanted -= len(os.read(self._acts, wanted))

    def _start(self, slot: int) -> None:
        seed = self._draw.randrange(2**32)
        self._ledger.read()  # so that members need not read what is old
        pid = os.fork()
        if pid == 0:
            try:
                live(slot, self._path, self._ledger, seed, lambda: os.write(self._told, b"."))
            except BaseException:
                told = traceback.format_exc()
                Path(f"{self._said}.{os.getpid()}").write_text(f"slot {slot}: {told}")
            finally:
                os._exit(1)
        self._slots[pid] = slot

    def _bury(self, wanted: int = -1) -> None:
        """Wait for one member that was killed, or for all that ended by themselves."""
        while self._slots:
            pid, status = os.waitpid(wanted, 0 if wanted > 0 else os.WNOHANG)
            if pid == 0:
                return
            slot = self._slots.pop(pid)
            if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
                self.kills += 1
            else:
                said = Path(f"{self._said}.{pid}")
                self.violations.append(said.read_text() if said.exists() else f"slot {slot} ended by {status}")
            if wanted > 0:
                return


def main() -> None:
    """Run a soak."""
    path, ledger_path, seconds, seed = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    ledger = Ledger(ledger_path)
    gc.freeze()
    nursery = Nursery(path, ledger, seed)
    nursery.run(seconds)
    ledger.close()
    print(json.dumps({"kills": nursery.kills, "violations": nursery.violations}), flush=True)


if __name__ == "__main__":
    main()
