"""Two stores meet at one remote while their processes are killed: nothing is lost, and every statement is true.

``CKSTORE_SOAK_S`` says how long it goes on, in `make crash` it is an hour. `tests.soak.meeting` says more, and finds
what is lost where a rule is taken out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mutants.runner import MUTANTS
from tests.soak.meeting import RULES
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import CRASH_FULL, SOAK_S

pytestmark = [pytest.mark.soak, pytest.mark.crash]
_ROOT = Path(__file__).parents[2]
_LONG_S, _HOUR_S, _LATE_S = 60.0, 3600.0, 3600.0
_PLACES = ("--service", "--users", "", "--faults")


@pytest.mark.timeout(0)
def test_two_stores_at_one_remote_lose_nothing_and_say_nothing_false(capsys: pytest.CaptureFixture[str]) -> None:
    seed, seconds = lane_seed(), _HOUR_S if CRASH_FULL else SOAK_S
    places = [place for place in _PLACES if place != "--users" or os.geteuid() == 0]
    words = [str(seconds), "--seed", str(seed), places[seed % len(places)]]
    with tempfile.TemporaryDirectory(prefix="ckstore-meeting-") as folder:
        # Not below a directory of pytest: users of a group could not get there.
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", "tests.soak.meeting", *filter(None, words), "--folder", f"{folder}/meeting"]
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=seconds + _LATE_S, check=False
        )

    assert done.stdout, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    wrong = said.pop("violations")
    with capsys.disabled():
        print(f"\n{covered('soak', f'two stores {words[-1]}', violations=len(wrong), seed=seed, **said)}")
    assert not wrong, "\n".join(wrong)
    # In the seconds of the short form a busy machine gets no further than the first two.
    rest = ("checked", "mirrored", "checked_there") if seconds >= _LONG_S else ()
    for what in ("kills", "acknowledged", *rest):
        assert said[what], f"no {what}: {said}"


def test_each_rule_that_can_be_taken_out_is_made_of_mutants() -> None:
    for names in RULES.values():
        files = [MUTANTS[name].file for name in names]
        assert len({*files}) == len(files)
