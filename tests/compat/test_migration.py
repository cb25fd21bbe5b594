"""The command that kills the conversion of random stores runs, with a store of an archive and at a few calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.archives import FOLDER, unpack
from tests.support.requirements import require_c_compiler

ROOT = Path(__file__).parents[2]


@pytest.mark.crash
def test_a_conversion_that_is_killed_at_a_call_loses_nothing(tmp_path: Path) -> None:
    require_c_compiler()
    (tmp_path / "stores" / "0").mkdir(parents=True)
    unpack(FOLDER / "35f3e85f" / "labels.tar.xz", tmp_path / "stores" / "0")
    words = ["--stores", str(tmp_path / "stores"), "--count", "1", "--stride", "9", "--catalog-stride", "90"]

    command = [sys.executable, "-m", "tests.compat.migration", *words, "--seed", "0"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 losses" in done.stdout.splitlines()[-1]
    assert "1 stores with 10 checkpoints" in done.stdout.splitlines()[-1]
