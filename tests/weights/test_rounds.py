"""Trainers and publishers are killed at random: engines never serve other bytes, and end with the newest step.

``CKSTORE_CRASH=full`` goes 100 rounds, else a few.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.coverage import covered, lane_seed
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

_ROOT = Path(__file__).parents[2]
_ROUNDS = 100 if CRASH_FULL else 5


@pytest.mark.timeout(1800)
def test_engines_never_serve_what_no_trainer_saved(tmp_path: Path) -> None:
    seed = lane_seed()
    command = [sys.executable, "-m", "tests.weights.rounds", str(tmp_path), str(_ROUNDS), str(seed)]
    ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=1500, check=False)
    assert ended.returncode == 0, ended.stderr
    done = json.loads(ended.stdout)
    print(covered("weights", "rounds", violations=len(done["wrong"]), seed=seed, kills=done["kills"]))
    assert not done["wrong"]
    assert done["versions"] > 0
    check_store(tmp_path / "store")
