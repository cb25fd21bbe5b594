"""How long ``ckstore log`` takes, compared with Python itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore import Store
from tests.cli.conftest import environment
from tests.support.memory import memory_folder

COUNT = 1000


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory: a thousand saves to a disk take longer than all that is measured."""
    with tempfile.TemporaryDirectory(dir=memory_folder() or tmp_path) as name:
        yield Path(name)


@pytest.mark.bench
@pytest.mark.slow
def test_log_of_a_thousand_checkpoints_starts_about_as_fast_as_python_and_click(
    tmp_path: Path, in_memory: Path
) -> None:
    with Store.init(in_memory / "s") as store:
        for step in range(COUNT):
            metrics = {"loss": 1 / (step + 1), "val_loss": 2.0}
            store.save({"step": step}, step=step, metrics=metrics)
    env = environment()
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as for every user, modules are compiled once
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "bytecode")
    start = "from ckstore_cli.app import main; main()"
    log = [sys.executable, "-c", start, "log", "--store", str(in_memory / "s")]
    nothing = [sys.executable, "-c", "pass"]

    taken = [(spent_s(nothing, env), spent_s(log, env)) for _ in range(15)]

    best_nothing, best_log = (min(times) for times in zip(*taken, strict=True))
    ratio = best_log / best_nothing
    print(f"log of {COUNT}: {best_log * 1e3:.0f} ms, {ratio:.1f} times `python -c pass`; wanted: at most 10")
    shown = subprocess.run(log, check=True, capture_output=True, text=True, timeout=60, env=env)
    assert len(shown.stdout.splitlines()) >= COUNT


def spent_s(command: list[str], env: dict[str, str]) -> float:
    """Time a whole process. It is waited for without a timeout, with which `subprocess` looks only every 50 ms."""
    begun_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) as process:
        assert process.wait() == 0
    return time.perf_counter() - begun_s
