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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
_PIPE_BYTES = 2**16
_COLLECTOR_LIVES = 8


Life = Callable[[int, Callable[[], object]], None]
"""What a member does from a seed until it is killed; it calls the second argument after each act."""


class Slot(NamedTuple):
    """A place in a crowd, which is filled again as soon as its process was killed.

    Attributes:
        name: Tells it from the others in what its members say.
        live: What its members do.
        weight: How often it is killed, compared with others.
    """

    name: str
    live: Life
    weight: int = 1


class Nursery:
    """A crowd.

    Attributes:
        kills: How many members were killed.
        acts: How many things they did.
        violations: What those said that ended by themselves.
    """

    def __init__(self, slots: Sequence[Slot], said: Path, seed: int, prepare: Callable[[], object]) -> None:
        """Begin with no member; `said` is where members leave why they ended, `prepare` is called before each fork."""
        self.kills = 0
        self.acts = 0
        self.violations: list[str] = []
        self._members = slots
        self._prepare = prepare
        self._draw = random.Random(seed)
        self._slots: dict[int, int] = {}
        self._acts, self._told = os.pipe()
        self._said = said

    def run(self, seconds: float) -> None:
        """Keep the crowd at work for so long, then kill all of it."""
        deadline = time.monotonic() + seconds
        for slot in range(len(self._members)):
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
        """Return who is next."""
        members = list(self._slots.items())
        weights = [self._members[slot].weight for _, slot in members]
        return self._draw.choices(members, weights)[0]

    def _wait_for_acts(self, wanted: int, deadline: float) -> None:
        """Let the crowd do something between two kills, however slow the machine is."""
        late = min(deadline, time.monotonic() + _WAIT_MOST_S)
        while wanted > 0 and (left := late - time.monotonic()) > 0:
            ready, _, _ = select.select([self._acts], [], [], left)
            if ready:
                seen = len(os.read(self._acts, _PIPE_BYTES))
                wanted -= seen
                self.acts += seen

    def _start(self, slot: int) -> None:
        seed = self._draw.randrange(2**32)
        self._prepare()
        pid = os.fork()
        if pid == 0:
            try:
                self._members[slot].live(seed, lambda: os.write(self._told, b"."))
            except BaseException:
                told = traceback.format_exc()
                Path(f"{self._said}.{os.getpid()}").write_text(f"{self._members[slot].name}: {told}")
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
                self.violations.append(
                    said.read_text() if said.exists() else f"{self._members[slot].name} ended by {status}"
                )
            if wanted > 0:
                return


def main() -> None:
    """Run a soak."""
    path, ledger_path, seconds, seed = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    ledger = Ledger(ledger_path)
    gc.freeze()
    # One act of a collector is long: it is killed more rarely, else it would free nothing.
    slots = [
        Slot(f"slot {slot}", partial(live, slot, path, ledger), 1 if role is collector else _COLLECTOR_LIVES)
        for slot, role in enumerate(ROLES)
    ]
    # So that members need not read what is old.
    nursery = Nursery(slots, ledger_path.with_suffix(".said"), seed, ledger.read)
    nursery.run(seconds)
    ledger.close()
    print(json.dumps({"kills": nursery.kills, "violations": nursery.violations}), flush=True)


if __name__ == "__main__":
    main()
