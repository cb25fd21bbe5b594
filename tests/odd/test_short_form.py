"""A short form of ``make odd``: a few files of each room, under odd environments; in ``make crash`` under each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import representatives, require

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tests" / "tools" / "odd-environments"

ALWAYS = ["tests/odd/test_in_force.py"]
SENSITIVE = {
    "optimized": ["tests/ops/test_hostile_store.py", "tests/model/test_names.py"],
    "warnings": ["tests/cli/test_start.py"],
    "umask-000": ["tests/fs/test_permissions.py", "tests/cli/test_init.py"],
    "umask-077": ["tests/fs/test_permissions.py", "tests/cli/test_init.py"],
    "non-root": ["tests/fs/test_permissions.py", "tests/ops/save/test_dedup.py"],
    "read-only": ["tests/ops/save/test_dedup.py", "tests/ops/index/test_seen.py"],
    "clock": ["tests/cli/test_init.py", "tests/ops/index/test_seen.py"],
}
"""What each of them touches most, and takes few seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("name", representatives(SENSITIVE, "read-only"))
def test_the_suite_is_green_under(name: str) -> None:
    if name == "read-only":
        probe = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount", "true"]
        done = subprocess.run(probe, check=False, capture_output=True, text=True)
        require(done.returncode == 0, f"no mount namespace can be made: {done.stderr.strip()}")

    if name == "non-root" and os.geteuid() == 0:
        closed = [path for path in Path(sys.executable).resolve().parents if not path.stat().st_mode & 0o001]
        if closed:  # the tool says the same and fails; that is a matter of the machine, not of ckstore
            pytest.skip(f"other users cannot run this Python: {closed} are closed to them")

    done = subprocess.run(
        [str(TOOL), name, "--", *ALWAYS, *SENSITIVE[name], "-m", "not slow and not bench"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
        timeout=280,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"green under each of: {name}" in done.stdout


def test_an_environment_that_there_is_not_is_refused() -> None:
    done = subprocess.run([str(TOOL), "moonlight"], check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "there is no environment moonlight" in done.stderr


def test_a_test_that_fails_makes_the_tool_fail(tmp_path: Path) -> None:
    (tmp_path / "test_false.py").write_text(
        "def test_false():\n    assert not __debug__, 'and so it does'\n    assert 0\n"
    )
    done = subprocess.run(
        [str(TOOL), "optimized", "--", str(tmp_path / "test_false.py"), "-c", "/dev/null"],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable},
        timeout=120,
    )

    assert done.returncode == 1, done.stdout
    assert "failed under: optimized" in done.stderr
    assert "1 failed" in done.stdout
