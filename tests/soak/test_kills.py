"""Eight savers, two collectors and four readers with mappings under random kill -9: nothing is lost or half there.

``CKSTORE_SOAK_S`` says how long it goes on. Every member looks, when it starts, whether what was acknowledged and not
dropped loads bit for bit; so does the test at the end, when all have been killed.
"""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from tests.faults.checker import check_tree
from tests.soak.doomed import check_promised, check_warnings, token_of
from tests.soak.ledger import Ledger
from tests.support.checkpoint_dirs import step_of_name
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import SOAK_S

pytestmark = [pytest.mark.soak, pytest.mark.root]

_ROOT = Path(__file__).parents[2]
_CHUNK_BYTES = 2**20
_LATE_S = 180.0


_LONG_S = 60.0
"""From here on everything has to have happened."""


def soak(path: Path, ledger: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Let the crowd live and die in the store at `path`; return what its nursery says."""
    command = [sys.executable, "-m", "tests.soak.nursery", str(path), str(ledger), str(seconds), str(seed)]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=seconds + _LATE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    return said


def wrong_at_the_end(path: Path, ledger: Ledger) -> list[str]:
    """Return what is wrong with a store whose users were all killed."""
    history = ledger.read()
    wrong: list[str] = []
    with Store.open(path) as store:
        check_warnings(store)
        infos = store.checkpoints()
        for info in infos:
            token = token_of(store.load(info), info.name)
            allowed = history.tokens((info.run, info.step))
            if token not in allowed:
                wrong.append(f"{info.name} holds {token}, wanted one of {sorted(allowed)}")
        for info in store.checkpoints(superseded=True):
            token_of(store.load(info), info.name)
        seen = {(info.run, info.step) for info in infos}
        wrong += [f"{place} was acknowledged, not dropped, and is gone" for place in set(history.promised) - seen]
        on_disk = {(entry.parent.name, step_of_name(entry.name)) for entry in path.glob("checkpoints/*/*")}
        if on_disk != seen:
            wrong.append(f"directories without a checkpoint: {sorted(on_disk ^ seen)}")
        for tag in store.tags():
            if tag.dangling:
                wrong.append(f"the tag {tag.name} names nothing")
            store.untag(tag.name)
        report = store.gc(now=True)
        left = (report.held, report.linked_outside, report.trash_left)
        if left != ((), (), ()):
            wrong.append(f"gc leaves {left}")
        superseded = {*path.glob("checkpoints/*/*")} - {
            store._context.layout.checkpoint(info.key).path for info in infos
        }
        if superseded:
            wrong.append(f"gc leaves {sorted(map(str, superseded))}")
    with Store.open(path) as store:
        if [info.id for info in store.checkpoints()] != [info.id for info in infos]:
            wrong.append("opened again it lists other checkpoints")
        check_promised(store, ledger)
    return wrong + check_tree(path)


@pytest.mark.timeout(0)
def test_whatever_is_killed_when_nothing_is_lost_and_nothing_half_visible(
    journaled_tmp_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulthandler.cancel_dump_traceback_later()  # a long soak does not hang
    path, seed = journaled_tmp_path / "store", lane_seed()
    Store.init(path, chunk_bytes=_CHUNK_BYTES).close()

    said = soak(path, tmp_path / "ledger", SOAK_S, seed)

    ledger = Ledger(tmp_path / "ledger")
    did = ledger.read().did
    wrong = said["violations"] + ([] if said["violations"] else wrong_at_the_end(path, ledger))
    ledger.close()
    with capsys.disabled():
        line = covered(
            "soak", "8 savers, 2 gcs, 4 readers, kill -9", violations=len(wrong), seed=seed, kills=said["kills"], **did
        )
        print(f"\n{SOAK_S:.0f} s: {line}", flush=True)
    assert not wrong, "\n".join(wrong)
    # In the seconds of the short form a busy machine gets no further than this.
    rest = ("gcs", "freed", "dropped", "compacted", "mapped", "opened") if SOAK_S >= _LONG_S else ()
    for what in ("acknowledged", "checked_at_start", *rest):
        assert did[what], f"no {what} in {SOAK_S} s: {dict(did)}"
    assert said["kills"]
