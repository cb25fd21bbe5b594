"""What all tests that train with a framework are marked with, and how they have a training killed."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINS = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),  # those of the framework are not ours
]


def kill_in_a_save(warm: Path, program: str, *words: object) -> None:
    """Run one of the programs here, which has to kill itself in a save."""
    command = [str(warm / "python"), "-m", f"tests.integrations.{program}", *map(str, words)]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
